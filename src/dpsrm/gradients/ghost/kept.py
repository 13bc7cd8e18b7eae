"""Calls that are not shown while they run: vmap hands out their inputs and outputs at the end of the pass.

Showing a call to Python in the middle of a pass (`tap.show`) costs more than a small layer. What a vmapped function
returns, torch hands out for all examples, examples in front; so the recorded tensors are returned beside the losses.
Whether what came out is what was computed with, torch says as well:

- An output's gradient is there only if the losses depend on it. A tensor that vmap had to expand or to turn around, or
  one from inside of another vmap or gradient, is a new tensor, on which no loss depends.
- A tensor's version counts what was written into it. An input that nobody ever wrote into is the input that was used.

Calls for which this does not hold are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from dpsrm.gradients.ghost.calls import Call, Key

Shown = frozenset[Key] | None
"""The calls that must be shown while they run; None: all."""


class NotKeptError(Exception):
    """Some calls' tensors were not handed out as they were used: these `keys` must be shown."""

    def __init__(self, keys: frozenset[Key]) -> None:
        """Remember the calls."""
        super().__init__(sorted(keys))
        self.keys = keys


class Kept:
    """The calls of one pass whose tensors are handed out at its end."""

    def __init__(self, parameters: Iterable[Tensor], shown: Shown) -> None:
        """None yet."""
        self._shown = shown
        self.asking = {id(p): p.detach().requires_grad_() for p in parameters} if shown is not None else {}
        """Copies of the parameters that ask for a gradient, so that a first layer's output has one. Nobody wants the
        copies' own, so torch does not compute them."""
        self._calls: list[Call] = []
        self._tensors: list[Tensor] = []
        self._changed: set[Key] = set()

    def takes(self, key: Key) -> bool:
        """Whether a call can be kept."""
        return self._shown is not None and key not in self._shown

    def add(self, call: Call, x: Tensor, output: Tensor) -> Tensor:
        """Keep a call with its input and its output, as one example sees them."""
        self._calls.append(call)
        self._tensors += (x, output)
        return output

    def tensors(self) -> list[Tensor]:
        """What the vmapped function must return, all in one list, through which torch goes fastest; forgotten here."""
        tensors, self._tensors = self._tensors, []
        return tensors

    def hand_out(self, tensors: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Give each call its tensors of all examples; `given` is the batch, which must not change anyway."""
        versions = {tensor.untyped_storage().data_ptr(): tensor._version for tensor in given}
        for call, (x, output) in zip(self._calls, zip(tensors[::2], tensors[1::2], strict=True), strict=True):
            written = x._version not in (0, versions.get(x.untyped_storage().data_ptr()))
            if written or output._version:
                self._changed.add(call.key)
            call.kept(x, output)

    def check(self) -> None:
        """After the way back: refuse the pass if a call's tensors are not those that were used."""
        failed = frozenset(call.key for call in self._calls if call.grad is None) | self._changed
        if failed:
            raise NotKeptError(failed)
