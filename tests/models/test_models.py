"""Models that people bring, whole, at tiny size: equal to the float64 loop, natively where it says so, and bounded."""

import re
from functools import lru_cache

import pytest
import torch

from dpsrm.core.tree import mapped
from models.whole_models import case, relative_error, route
from packages import ROOT

pytest.importorskip("transformers", reason="pip install 'dpsrm[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

MODELS = {
    "bert": "BERT, sequence classifier, with an attention mask",
    "distilbert": "DistilBERT, sequence classifier, with an attention mask",
    "lora": "LoRA on BERT (peft), with an attention mask",
    "gpt2": "GPT-2, all parameters, tied head",
    "llama": "Llama, grouped queries, tied head",
    "t5": "T5 encoder, with an attention mask",
    "mamba": "Mamba, tied head, without compiled kernels",
    "vit": "ViT of transformers",
    "resnet18": "ResNet-18 with GroupNorm",
    "wrn": "WRN-16-4 with GroupNorm",
    "wrn-ws": "WRN-16-4 with GroupNorm and weight standardisation",
    "convnext": "ConvNeXt",
    "unet": "U-Net with transposed convolutions",
    "vae": "variational autoencoder",
}
ROUTES: dict[str, str] = {}
"""What is not native today."""
each = pytest.mark.parametrize("name", MODELS)


@lru_cache
def known(name):
    """The case and its route, looked at once."""
    found = case(name)
    found.ghost(found.query("one"))
    return found, route(found.said)


@each
@pytest.mark.parametrize("kind", ["one", "near", "far"])
def test_equal_to_the_float64_loop(name, kind):
    found, _ = known(name)
    query = found.query(kind, clip=0.1)
    ours, exact = found.ghost(query), found.oracle(query)
    assert ours.rows == exact.rows == 4
    assert relative_error(ours.secret, exact.secret) <= {"one": 1e-5, "far": 1e-5, "near": 2e-3}[kind]


@each
def test_route(name):
    """Natively, or what is left to torch.func: a model that becomes native must be told so here."""
    assert known(name)[1] == ROUTES.get(name, "native")


def shown():
    """The table of the docs."""
    rows = [f"| {title} | {known(name)[1]} |" for name, title in MODELS.items()]
    return "\n".join(["| model | how its per-example gradients are computed |", "|---|---|", *rows])


def test_the_table_in_the_docs():
    page = (ROOT / "docs" / "transformers.md").read_text()
    (table,) = re.findall(r"<!-- models -->\n(.*?)\n<!-- end -->", page, re.S)
    assert table == shown(), shown()


def hostile(tensor, way):
    """A record that no collector would give: numbers far out, or words from the ends of the dictionary."""
    if tensor.is_floating_point():
        return tensor * {"huge": 1e6, "flat": 0.0, "wild": -37.0}[way]
    if tensor.dim() == 0:
        return tensor
    return {"huge": tensor.amax().expand_as(tensor), "flat": 0 * tensor, "wild": tensor.flip(0)}[way]


def replaced(batch, way):
    """The batch with its second record replaced; masks keep a first word, as every collate function does."""

    def other(tensor):
        new = tensor.clone()
        new[1] = hostile(tensor[1], way)
        return new

    changed = mapped(other, batch)
    if isinstance(changed, dict) and "attention_mask" in changed:
        changed["attention_mask"][1, 0] = 1
    return changed


@each
@pytest.mark.parametrize("kind", ["one", "near"])
def test_replacing_a_record_moves_the_sum_by_at_most_the_sensitivity(name, kind):
    """Grey box: all other examples and all randomness are the same, and the clip is far below every gradient."""
    found, _ = known(name)
    query = found.query(kind, clip=1e-3)
    before = found.ghost(query).secret
    moved = []
    for way in ("huge", "flat", "wild"):
        after = found.ghost(query, replaced(found.batch, way)).secret
        moved.append(float((after - before).norm()) / query.bound)
    assert max(moved) <= 2.0
    alone = mapped(lambda tensor: tensor[1:2], found.batch)
    torch.testing.assert_close(float(found.ghost(query, alone).secret.norm()), query.bound, rtol=0.5, atol=0.0)


@each
def test_an_example_contributes_what_it_contributes_alone(name):
    """The sum over a batch is the sum over its examples, one by one: nothing passes from one to another."""
    found, _ = known(name)
    if not found.steady:
        pytest.skip("draws anew for each sum")
    query = found.query("one", clip=0.1)
    single = [found.ghost(query, mapped(lambda t, i=i: t[i : i + 1], found.batch)).secret for i in range(4)]
    assert relative_error(sum(single), found.ghost(query).secret) <= 1e-5
