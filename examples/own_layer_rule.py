"""A layer of one's own with a rule for the ghost engine, compared with the oracle that takes one example at a time.

Without a rule the engine leaves a layer it does not know to `torch.func`: right, but slower and with more memory. A
rule says how each example's gradient of the weight is made of the layer's input and the gradient of its output.

It sees all examples at once, in the first dimension, and must keep them apart: a rule that mixed them would break the
guarantee, which is why it is compared with the oracle below. Run it with: python own_layer_rule.py
"""

import dpsrm
import torch
from dpsrm.gradients import GhostEngine, LoopEngine, Objective, Part, Query
from dpsrm.gradients.ghost import Outer
from torch import nn
from torch.overrides import wrap_torch_function


@wrap_torch_function(lambda x, weight: (x, weight))  # lets the engine see calls of a function that is not torch's
def sine(x, weight):
    """y = sin(x Wᵀ), as in SIREN."""
    return torch.sin(x @ weight.T)


@dpsrm.rule(sine)
def sine_rule(g, x, weight):
    """∂y/∂W: g·cos(x Wᵀ) ⊗ x, for each example and position; g and x are (examples, positions, features)."""
    return {"weight": Outer(x, g * torch.cos(x @ weight.T))}


class Sine(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x):
        return sine(x, self.weight)


if __name__ == "__main__":
    model = nn.Sequential(Sine(8, 16), Sine(16, 16), nn.Linear(16, 3))
    objective = Objective.of(model, nn.CrossEntropyLoss(reduction="none"))
    theta = objective.layout.read(model)
    before = theta + 0.01 * torch.randn_like(theta)
    parts = Part(coefficients=(1, -1), clip=0.05), Part(coefficients=(1, 0), clip=0.5)  # as DP-SRM asks
    query, batch = Query(points=(theta, before), parts=parts), (torch.randn(64, 8), torch.randint(3, (64,)))
    ghost, oracle = GhostEngine(objective)(query, batch), LoopEngine(objective)(query, batch)
    apart = (ghost.secret - oracle.secret).abs().max()  # made-up data: with real records only the airlock reads a sum
    print(f"rule and oracle differ by at most {apart:.1e}; clipped: {ghost.diagnostics.clipped}")
    assert apart < 1e-5
