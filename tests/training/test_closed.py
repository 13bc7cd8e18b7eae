"""What is closed stays so, also if `finish` is interrupted before it returns."""

import pytest
import torch
from torch import nn

from dpsrm import InputError, LedgerError, make_private, verify
from dpsrm.runs import RunFolder
from dpsrm.runs.ledger import read_ledger


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run whose `finish` was stopped by Ctrl-C just before it destroyed the key."""
    model = nn.Linear(3, 1)
    run = make_private(
        model=model,
        losses=lambda model, batch: model(batch[0]).squeeze(1) - batch[1],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=(torch.ones(40, 3), torch.zeros(40)),
        batch_size=10,
        steps=6,
        epsilon=1.0,
        delta=1e-5,
        out=tmp_path / "run",
    )
    batches, earlier = iter(run.data_loader), run.state_dict()
    for _ in range(3):
        run.step(next(batches))

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "destroy_key", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.finish()
    return run, batches, earlier


def test_finish_again_changes_nothing_but_destroys_the_key(interrupted):
    """The ledger was closed twice: `finish` returned a Run whose folder never verified again."""
    run, _, _ = interrupted
    folder = RunFolder(run.folder)
    before = folder.ledger.read_bytes()
    assert folder.keys.exists()
    assert run.finish().head == read_ledger(folder.ledger).head
    assert folder.ledger.read_bytes() == before
    assert verify(run.folder).ok
    assert not folder.keys.exists()


def test_nothing_is_released_or_gone_back_to_after_it(interrupted):
    run, batches, earlier = interrupted
    for go_on in (lambda: run.step(next(batches)), lambda: run.load_state_dict(earlier)):
        with pytest.raises(InputError, match="the run is finished"):
            go_on()
    run.finish()
    assert verify(run.folder).ok


def test_no_line_follows_a_closing_line(interrupted):
    run, _, _ = interrupted
    ledger, facts = run._run._ledger, read_ledger(RunFolder(run.folder).ledger)
    (charge,) = facts.spending.charges
    with pytest.raises(LedgerError, match="is closed"):
        ledger.charge(charge.event, 1)
    assert read_ledger(RunFolder(run.folder).ledger) == facts
