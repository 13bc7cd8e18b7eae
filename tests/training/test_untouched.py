"""In one's own loop nobody but `step` moves model and optimizer, nor what the optimizer remembers."""

import gc

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dpsrm import InputError, make_private

N = 60
RECORDS = torch.ones(N, 3), torch.zeros(N)
REMEMBER = {
    "sgd": lambda held: torch.optim.SGD(held, lr=0.5, momentum=0.9),
    "adam": lambda held: torch.optim.Adam(held, lr=0.5),
    "foreach": lambda held: torch.optim.AdamW(held, lr=0.5, foreach=True),
    "fused": lambda held: torch.optim.AdamW(held, lr=0.5, fused=True),
    "rmsprop": lambda held: torch.optim.RMSprop(held, lr=0.5),
    "adagrad": lambda held: torch.optim.Adagrad(held, lr=0.5),
    "adadelta": lambda held: torch.optim.Adadelta(held, lr=0.5),
}


class Hidden(torch.optim.Optimizer):
    """A momentum where nobody looks: in an attribute."""

    def __init__(self, held):
        super().__init__(held, {"lr": 0.5})
        self.kept = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for kept, held in zip(self.kept, group["params"], strict=True):
                if held.grad is not None:
                    held.sub_(kept.mul_(0.9).add_(held.grad), alpha=group["lr"])


UNSEEN = {
    "hidden": Hidden,
    "fused sgd": lambda held: torch.optim.SGD(held, lr=0.5, momentum=0.9, fused=True),  # counts no writes
}


def losses(model, batch):
    return model(batch[0]).squeeze(1) - batch[1]


def model():
    built = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False))
    built[0].weight.requires_grad_(False)
    return built


def begun(out, model, optimizer, records=RECORDS):
    promise = {"epsilon": 1.0, "delta": 1e-5, "seed": 3, "sampling": "wor"}
    return make_private(
        model=model, losses=losses, optimizer=optimizer, data=records, batch_size=N, steps=4, out=out, **promise
    )


def left_in(model, optimizer, batch):
    """What somebody forgot to take out of the loop."""
    losses(model, batch).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["sgd", *UNSEEN])
def test_a_gradient_in_the_momentum_would_move_what_is_published(tmp_path, monkeypatch, name):
    """Without the guards: where the learning rate warms up from 0, one record moved θ by 380, at a printed ε of 1."""
    monkeypatch.setattr("dpsrm.training.untouched.Untouched.need_memory", lambda _: None)
    monkeypatch.setattr("dpsrm.training.untouched.Untouched._need_ours", lambda *_: None)
    found = []
    for out, value in (("one", 1.0), ("other", 1000.0)):
        torch.manual_seed(0)
        one, inputs = model(), torch.ones(N, 3)
        inputs[0] = value
        optimizer = (REMEMBER | UNSEEN)[name](one.parameters())
        warming = LambdaLR(optimizer, lambda time: float(time > 0))
        run = begun(tmp_path / out, one, optimizer, (inputs, RECORDS[1]))
        for at, batch in enumerate(run.data_loader):
            if at == 0:
                left_in(one, optimizer, batch)
            run.step(batch)
            warming.step()
        assert run.finish().epsilon <= 1.0
        found.append(one[1].weight.detach().clone())
    assert float((found[0] - found[1]).norm()) > 100


@pytest.mark.parametrize("name", REMEMBER | UNSEEN)
@pytest.mark.parametrize("before", [0, 2])
def test_gradients_of_others_are_refused_before_an_optimizer_has_them(tmp_path, name, before):
    one = model()
    optimizer = (REMEMBER | UNSEEN)[name](one.parameters())
    run = begun(tmp_path / "run", one, optimizer)
    batches = iter(run.data_loader)
    for _ in range(before):
        run.step(next(batches))
    batch = next(batches)
    with pytest.raises(InputError, match="only step\\(\\) may give the optimizer gradients"):
        left_in(one, optimizer, batch)
    optimizer.zero_grad()
    optimizer.step()  # nothing to do
    with pytest.raises(InputError, match="only step\\(\\) may give the optimizer gradients"):
        optimizer.step(lambda: losses(one, batch).sum().backward())
    run.step(batch)
    for again in batches:
        run.step(again)
    assert run.finish().epsilon <= 1.0
    left_in(one, optimizer, RECORDS)  # the run has ended: what comes next is the user's


def test_an_optimizer_is_let_go_of_with_the_run(tmp_path):
    one = model()
    optimizer = REMEMBER["sgd"](one.parameters())
    with begun(tmp_path / "left", one, optimizer):
        pass
    left_in(one, optimizer, RECORDS)
    begun(tmp_path / "forgotten", one, optimizer)  # nobody holds it
    gc.collect()
    left_in(one, optimizer, RECORDS)


def test_a_run_that_was_left_open_does_not_stop_the_next(tmp_path):
    """A notebook's cell that was run twice, while something still holds the first run."""
    one = model()
    optimizer = REMEMBER["sgd"](one.parameters())
    left = begun(tmp_path / "left", one, optimizer)
    run = begun(tmp_path / "run", one, optimizer)
    for batch in run.data_loader:
        run.step(batch)
    assert run.finish().epsilon <= 1.0
    with pytest.raises(InputError, match="only step"):
        left.step(next(iter(left.data_loader)))


@pytest.mark.parametrize("before", [0, 2])
def test_what_is_written_into_an_optimizers_memory_is_refused(tmp_path, before):
    one = model()
    optimizer = REMEMBER["sgd"](one.parameters())
    run = begun(tmp_path / "run", one, optimizer)
    batches = iter(run.data_loader)
    for _ in range(before):
        run.step(next(batches))
    earlier, batch = run.state_dict(), next(batches)
    losses(one, batch).sum().backward()
    optimizer.state[one[1].weight]["momentum_buffer"] = one[1].weight.grad.clone()
    for refused in (run.state_dict, lambda: run.step(batch)):
        with pytest.raises(InputError, match="only step\\(\\) may change what the optimizer remembers"):
            refused()
    run.load_state_dict(earlier)
    for again in run.data_loader:
        run.step(again)
    assert run.finish().epsilon <= 1.0


def test_what_is_trained_is_decided_before(tmp_path):
    """Layers that thaw on the way were moved by gradients without noise, where a backward() was left in the loop."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    run = begun(tmp_path / "run", one, optimizer)
    batches = iter(run.data_loader)
    run.step(next(batches))
    batch, frozen = next(batches), one[0].weight
    frozen.requires_grad_(True)
    losses(one, batch).sum().backward()
    with pytest.raises(InputError, match=r"trained are those of make_private; got changed=\['0.weight'\]"):
        run.step(batch)
    frozen.requires_grad_(False)
    before = frozen.detach().clone()
    run.step(batch)
    assert torch.equal(frozen, before)


def test_nothing_else_that_an_optimizer_was_given_is_moved(tmp_path):
    one, more = model(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    run = begun(tmp_path / "run", one, optimizer)
    optimizer.add_param_group({"params": [more]})
    for batch in run.data_loader:
        (more * losses(one, batch).sum()).backward()
        run.step(batch)
    assert more.item() == 1.0


@pytest.mark.parametrize("name", REMEMBER)
def test_an_optimizer_that_stepped_before_is_told(tmp_path, caplog, name):
    """A few steps of the plain loop, to try it out, are in what begins the private one."""
    one = model()
    optimizer = REMEMBER[name](one.parameters())
    begun(tmp_path / "new", one, optimizer)
    assert "steps before" not in caplog.text
    left_in(one, optimizer, RECORDS)
    begun(tmp_path / "used", one, optimizer)
    assert "the optimizer has made steps before" in caplog.text
