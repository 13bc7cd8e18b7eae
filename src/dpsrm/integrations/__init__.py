"""What people already use around a training loop."""

from dpsrm.integrations.tracking import MLflow, TensorBoard

__all__ = ["MLflow", "TensorBoard"]
