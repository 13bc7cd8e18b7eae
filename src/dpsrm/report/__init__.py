"""From a run folder to pages that can be shown: the publishable report and the operator's. Nothing here needs torch."""

from dpsrm.report.facts import RunFacts, read_facts
from dpsrm.report.published import differing, documents, publish_words, write_private_report

__all__ = ["RunFacts", "differing", "documents", "publish_words", "read_facts", "write_private_report"]
