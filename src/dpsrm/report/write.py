"""Write the pages into a run folder: when a run ends, and again when somebody asks for them."""

from __future__ import annotations

from dataclasses import replace

from dpsrm.accounting import Guarantee
from dpsrm.core.files import write_atomically
from dpsrm.report.facts import read_facts
from dpsrm.report.journal import read_journal
from dpsrm.report.operator import operator_page
from dpsrm.report.published import documents
from dpsrm.runs.certificate import render
from dpsrm.runs.closing import Closing
from dpsrm.runs.folder import RunFolder


def publish_words(folder: RunFolder, closing: Closing) -> tuple[Guarantee | None, Closing]:
    """Write all that a run says about itself; the guarantee, and `closing` with the digests of what was written.

    A run killed here writes the same bytes again. The certificate comes last, because it names the others' digests.
    """
    facts = read_facts(folder, closing)
    for name, content in documents(facts).items():
        write_atomically(folder.path / name, content)
    said = folder.digests(folder.statement, folder.card, folder.report)
    closing = replace(closing, files={**closing.files, **said})
    write_atomically(folder.certificate, render(facts.ledger, facts.guarantee, closing).encode())
    write_private_report(folder)
    return facts.guarantee, replace(closing, files={**closing.files, **folder.digests(folder.certificate)})


def write_private_report(folder: RunFolder) -> None:
    """Write the operator's page from what `private/` holds now."""
    text = operator_page(read_journal(folder))
    write_atomically(folder.private_report, text.encode(), mode=0o600)


def differing(folder: RunFolder) -> tuple[list[str], str]:
    """The published pages that are not what this version of dpsrm makes of the same facts; which version made them."""
    facts = read_facts(folder)
    wrong = [name for name, content in documents(facts).items() if (folder.path / name).read_bytes() != content]
    return wrong, facts.made_by
