"""Only what is trained needs float32: frozen bases in bfloat16 and float16 under LoRA; autocast; the bound holds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpsrm.core.errors import InputError
from dpsrm.gradients import GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.training import make_private

SHORT = {torch.bfloat16: 3e-2, torch.float16: 3e-3}


class Adapted(nn.Module):
    """A frozen short layer with a float32 adapter of rank 2 beside it, and a trained head."""

    def __init__(self, dtype):
        super().__init__()
        self.base = nn.Linear(6, 8).to(dtype).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        fixed = self.base(x.to(self.base.weight.dtype)).float()
        return self.head(torch.tanh(fixed + self.up(self.down(x))))


class Autocasting(nn.Module):
    """Layers under autocast, the trained ones or the frozen ones only."""

    def __init__(self, *, trained):
        super().__init__()
        self.trunk = nn.Linear(6, 8).requires_grad_(trained)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.trunk(x)
        return self.head(torch.tanh(h.float()))


def losses(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def question(objective, clip):
    theta = objective.layout.read(objective.module)
    before = theta + 1e-2 * torch.randn(len(theta), generator=torch.Generator().manual_seed(2))
    parts = Part(coefficients=(1.0, -1.0), clip=clip / 2, weight=0.7), Part(coefficients=(1.0, 0.0), clip=clip)
    return Query(points=(theta, before), parts=parts)


@pytest.mark.parametrize("dtype", SHORT)
def test_a_frozen_short_base_under_a_float32_adapter(dtype):
    """Equal to the loop up to what the base rounds; every example within the bound, hostile ones too."""
    torch.manual_seed(0)
    objective = Objective.of(Adapted(dtype), losses)
    query = question(objective, 0.1)
    inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
    said = []
    engine = GhostEngine(objective, notice=said.append)
    fast, slow = engine(query, (inputs, targets)).secret, LoopEngine(objective)(query, (inputs, targets)).secret
    assert said == []
    assert fast.dtype is torch.float64
    assert float((fast - slow).norm() / slow.norm()) <= SHORT[dtype]
    for scale in (1e-6, 1.0, 1e3, 1e30):
        alone = engine(query, (scale * inputs[:1], targets[:1]))
        assert float(alone.secret.norm()) <= query.bound


def private(module, folder):
    data = torch.randn(40, 6), torch.randint(3, (40,))
    return make_private(
        model=module,
        losses=nn.CrossEntropyLoss(reduction="none"),
        optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1),
        data=data,
        batch_size=10,
        steps=2,
        epsilon=5.0,
        delta=1e-3,
        out=folder,
        seed=1,
    )


def test_autocast_on_a_trained_layer_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"not under autocast; got parameter='trunk\.weight'; leave autocast out"):
        private(Autocasting(trained=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_autocast_on_frozen_layers_works(tmp_path):
    torch.manual_seed(0)
    run = private(Autocasting(trained=False), tmp_path / "run")
    for batch in run.data_loader:
        run.step(batch)
    assert run.finish().epsilon <= 5


class Hasty(nn.Module):
    """Chooses shorter products for all of torch on its way, and leaves it so."""

    def __init__(self, choose):
        super().__init__()
        self.head, self.choose = nn.Linear(6, 3), choose

    def forward(self, x):
        self.choose()
        return self.head(x)


@pytest.mark.parametrize(
    "choose",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "tf32"),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16).__enter__(),
    ],
)
def test_precision_that_a_module_chooses_for_all_is_refused_before_a_charge(choose, tmp_path):
    """It would be that of the products that measure and sum the gradients, which are proved for float32."""
    armed = []
    run = private(Hasty(lambda: choose() if armed else None), tmp_path / "run")
    batch = next(iter(run.data_loader))
    armed.append(True)
    before = torch.get_float32_matmul_precision()
    with pytest.raises(InputError, match="precision as they find it"):
        run.step(batch)
    assert (run.epsilon, torch.get_float32_matmul_precision()) == (0, before)
    armed.clear()
    run.step(batch)


def test_autocast_around_the_loop_changes_nothing(tmp_path):
    """Norms and sums are computed in full precision, whatever the loop around has switched on."""
    found = []
    for on in (True, False):
        torch.manual_seed(0)
        run = private(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), tmp_path / str(on))
        for batch in run.data_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                found.append(run.step(batch).theta)
        run.finish()
    assert torch.equal(found[1], found[3])


class Tuned(nn.Module):
    """A frozen short trunk whose norms alone are trained, in float32: their gradients come in short numbers."""

    def __init__(self, dtype, kind):
        super().__init__()
        self.filters = nn.Conv2d(2, 16, 2).to(dtype, memory_format=torch.channels_last).requires_grad_(False)
        self.norm, self.head = kind(16), nn.Linear(16, 3)

    def forward(self, x):
        images = F.max_pool2d(self.filters(x.to(self.filters.weight.dtype)), 2, 1)
        return self.head(torch.tanh(self.norm(images.flatten(2).transpose(1, 2)).float()).mean(1))


@pytest.mark.parametrize("points", [1, 2])
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("dtype", SHORT)
def test_norms_of_a_short_trunk_are_trained_and_no_record_exceeds_its_clip(dtype, kind, points):
    torch.manual_seed(0)
    objective = Objective.of(Tuned(dtype, kind), nn.CrossEntropyLoss(reduction="none"))
    theta, batch = objective.theta(), (torch.randn(12, 2, 6, 6), torch.arange(12) % 3)
    others = (theta + 0.1 * torch.randn_like(theta),)[: points - 1]
    parts = (Part(coefficients=(1.0, -1.0)[:points], clip=0.01), Part(coefficients=(1.0, 0.0)[:points], clip=0.1))
    query = Query(points=(theta, *others), parts=parts)
    notes = []
    found = GhostEngine(objective, notice=notes.append)(query, batch).secret
    slow = LoopEngine(objective)(query, batch).secret
    assert (found - slow).norm() <= SHORT[dtype] * slow.norm()
    assert notes == [], "nothing is left to torch.func"
    for i in range(12):
        one = tuple(part[i : i + 1] for part in batch)
        assert GhostEngine(objective)(query, one).secret.norm() <= query.bound
