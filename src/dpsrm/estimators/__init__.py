"""scikit-learn faces of private training; public as `dpsrm.sklearn`."""
