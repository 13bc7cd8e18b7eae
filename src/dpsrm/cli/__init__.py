"""The `dpsrm` command."""
