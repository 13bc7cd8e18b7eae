"""The paper's experiments: recipes with the paper's numbers beside them, a resumable runner, tables and figures."""
