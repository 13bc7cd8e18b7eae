"""`dpsrm methods`: what there is to train with."""

from __future__ import annotations

from rich.table import Column, Table

from dpsrm.cli.show import Json, next_step, out, print_json

WHO = (
    "Name neither a method nor a training setting, and you get sgd with steps chosen by rule: plain ones for linear "
    "models, dp-adam for networks. Name training settings but no method, and you get srm."
)


def methods(as_json: Json = False) -> None:
    """List the methods.

    Example: dpsrm methods --json
    """
    from dpsrm.methods import METHODS

    rows = [
        {
            "name": name,
            "summary": cls.summary,
            "guarantee": cls.guarantee,
            "gradients_per_example": cls.gradients_per_example,
            "use": cls.use,
            "private": cls.private,
        }
        for name, cls in METHODS.items()
    ]
    if as_json:
        print_json({"methods": rows})
        return
    table = Table("name", "what", "when to use", Column("gradients per example", width=9), show_lines=True)
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("name", "summary", "use", "gradients_per_example")))
    out.print(table)
    out.print(WHO, highlight=False)
    out.print("What each one guarantees: docs/methods.md, or dpsrm methods --json.", highlight=False)
    next_step("train, or add --method NAME", "dpsrm train --data FILE --target COLUMN --epsilon 1 --delta 1e-5")
