"""The library's own proofs: every method × sampling × engine, on small models with the layers that engines know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from dpsrm.audit.prove import Proof, prove
from dpsrm.core.events import Adjacency, Scheme
from dpsrm.core.secret import Streams
from dpsrm.gradients import binary_loss, multiclass_loss
from dpsrm.methods import Agd, Disk, Gd, Method, Rrpsgd, Sgd, Spider, Srm
from dpsrm.training import Performance, Privacy, Settings, Training

N, FEATURES = 48, 6

METHODS: dict[str, Method] = {
    "srm": Srm(gamma=0.3),
    "srm-relative": Srm(gamma=0.3, relative=2.0),
    "srm-joint": Srm(gamma=0.3, joint_norm=0.6),
    "srm-gamma": Srm(gamma=0.3, gamma_schedule="cosine"),
    "srm-auto": Srm(gamma=0.3, clip="auto"),  # type: ignore[arg-type]
    "sgd": Sgd(),
    "sgd-momentum": Sgd(momentum=0.8),
    "sgd-auto": Sgd(clip="auto"),  # type: ignore[arg-type]
    "gd": Gd(),
    "rrpsgd": Rrpsgd(),
    "disk": Disk(),
    "spider": Spider(period=3),
    "agd": Agd(candidates=4, max_loss=1.0),
    "agd-exponential": Agd(candidates=4, max_loss=1.0, selection="exponential"),  # type: ignore[arg-type]
}
PROMISES = (
    (Scheme.POISSON, Adjacency.REPLACE_ONE),
    (Scheme.POISSON, Adjacency.ADD_REMOVE),
    (Scheme.WOR, Adjacency.REPLACE_ONE),
)


class _Tied(nn.Module):
    """Words that are looked up, averaged, and compared with all words again: one weight in two layers."""

    def __init__(self) -> None:
        """Seven words."""
        super().__init__()
        self.words, self.out = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the words."""
        logits: Tensor = self.out(torch.tanh(self.words(x)).mean(1))
        return logits


class _Head(nn.Module):
    """A frozen trunk under a trained head, with norms in between."""

    def __init__(self) -> None:
        """Some layers trained, some not."""
        super().__init__()
        self.trunk = nn.Linear(FEATURES, 8).requires_grad_(False)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.out(self.norm(torch.relu(self.trunk(x))))
        return logits


def _convolution() -> nn.Module:
    """A small image network."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.GroupNorm(1, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def _mlp() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "linear": (lambda: nn.Linear(FEATURES, 3), 3),
    "logistic": (lambda: nn.Linear(FEATURES, 1), 2),
    "mlp": (_mlp, 3),
    "convolution": (_convolution, 3),
    "frozen trunk": (_Head, 3),
    "tied words": (_Tied, 7),
}


@dataclass(frozen=True)
class Trial:
    """One proof of the library: by which method, sampling and engine, for which model."""

    model: str
    method: str
    engine: str
    scheme: Scheme
    adjacency: Adjacency

    def __str__(self) -> str:
        """In a few words."""
        return f"{self.method}, {self.model}, {self.engine}, {self.scheme.value}, {self.adjacency.value}"

    def prove(self, *, rounds: int = 1) -> Proof:
        """Run the proof."""
        make, classes = MODELS[self.model]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            module, data = make(), records(classes, words=self.model == "tied words")
        loss = binary_loss if classes == 2 else multiclass_loss
        return prove(module, loss, data, self.settings(), rounds=rounds)

    def settings(self) -> Settings:
        """A short plan; its noise is fixed, so that no time goes into calibration."""
        method = METHODS[self.method]
        fixed = method.batch_for(N) is not None
        return Settings(
            privacy=Privacy(
                epsilon=200.0,
                delta=1e-5,
                sampling=self.scheme,
                adjacency=self.adjacency,
                accountant="rdp",
                noise_multiplier=1.5,
            ),
            method=method,
            training=Training(
                batch=None if fixed else 12,
                first_batch=None if fixed else 24,
                steps=5,
                learning_rate=0.5,
            ),
            performance=Performance(engine=self.engine),
        )


def records(classes: int, *, words: bool = False) -> tuple[Any, Any]:
    """Made-up records: numbers, or words."""
    stream = Streams.seeded(5).output
    targets = torch.from_numpy(stream.integers(0, classes, N))
    if words:
        return torch.from_numpy(stream.integers(0, 7, (N, 5))), targets
    return torch.from_numpy(stream.standard_normal((N, FEATURES))).float(), targets


def trials() -> Iterator[Trial]:
    """All of them: every method × promise × engine, and every model × engine × promise for two methods."""
    for method, (scheme, adjacency) in product(METHODS, PROMISES):
        yield Trial("linear", method, "linear", scheme, adjacency)
        for engine in ("ghost", "functional", "loop"):
            yield Trial("mlp", method, engine, scheme, adjacency)
    others = ("convolution", "frozen trunk", "tied words")
    for model, engine, (scheme, adjacency) in product(others, ("ghost", "functional", "loop"), PROMISES):
        yield Trial(model, "srm", engine, scheme, adjacency)
    for model, (scheme, adjacency) in product(others, PROMISES):
        yield Trial(model, "sgd-auto", "ghost", scheme, adjacency)
    for scheme, adjacency in PROMISES:
        yield Trial("logistic", "srm", "linear", scheme, adjacency)
        yield Trial("linear", "srm-gamma", "functional", scheme, adjacency)
        yield Trial("linear", "agd", "ghost", scheme, adjacency)


def quick() -> list[Trial]:
    """A few that together pass every engine, promise and kind of release: for CI and for a first look."""
    wanted = [
        Trial("linear", "srm", "linear", *PROMISES[0]),
        Trial("mlp", "srm", "ghost", *PROMISES[0]),
        Trial("linear", "srm-gamma", "functional", *PROMISES[0]),
        Trial("convolution", "srm", "ghost", *PROMISES[2]),
        Trial("tied words", "srm", "ghost", *PROMISES[1]),
        Trial("frozen trunk", "sgd-auto", "ghost", *PROMISES[1]),
        Trial("mlp", "sgd-momentum", "loop", *PROMISES[2]),
        Trial("linear", "spider", "linear", *PROMISES[1]),
        Trial("linear", "agd", "ghost", *PROMISES[0]),
        Trial("linear", "agd-exponential", "linear", *PROMISES[0]),
    ]
    assert set(wanted) <= set(trials())
    return wanted
