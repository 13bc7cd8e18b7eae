"""What only the operator of a run can say about it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dpsrm.core.errors import need

_LONGEST_STATEMENT = 4000


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What only the operator can say in the run's report, in their own words; all of it is published.

    Args:
        purpose: what the model is for.
        source: where the data comes from and how it was collected.
        other_releases: what else was published from the same records.
        tuning: which other runs on the same records led to these settings.
        utility: how good the model is, with its uncertainty, measured where that may be published.
        groups: for whom it is worse.
        contact: whom to ask.
        license: of the model.
    """

    purpose: str | None = None
    source: str | None = None
    other_releases: str | None = None
    tuning: str | None = None
    utility: str | None = None
    groups: str | None = None
    contact: str | None = None
    license: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no text of a page or two."""
        for item in fields(self):
            text = getattr(self, item.name)
            good = text is None or (isinstance(text, str) and len(text) <= _LONGEST_STATEMENT)
            need(
                good,
                f"statement.{item.name} must be a text of at most {_LONGEST_STATEMENT} letters",
                got=str(text)[:40],
            )
