"""Fine-tuning as people do it: LoRA and GPT-2, where Opacus has open defects (820, 841), and a loop of Accelerate's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from dpsrm.gradients import GhostEngine, LoopEngine, ModelLosses, Objective, Part, Query
from dpsrm.runs import verify
from dpsrm.training import make_private

transformers = pytest.importorskip("transformers", reason="pip install 'dpsrm[hf]'")
peft = pytest.importorskip("peft", reason="pip install 'dpsrm[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
QUIET = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}


def gpt2():
    torch.manual_seed(0)
    size = {"vocab_size": 40, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **QUIET, use_cache=False))


def adapted():
    """Issue 820's model: GPT-2 with LoRA on its joint projection, a Conv1D."""
    config = peft.LoraConfig(
        r=2, lora_alpha=4, lora_dropout=0.0, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    return peft.get_peft_model(gpt2(), config)


def losses(model, batch):
    (ids,) = batch
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def texts(count):
    return torch.randint(40, (count, 8), generator=torch.Generator().manual_seed(1))


def trained(model, folder, *, wrap=lambda model: model):
    """A short private training in one's own loop."""
    model = wrap(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    private = make_private(
        model=model,
        losses=losses,
        optimizer=torch.optim.AdamW(parameters, lr=1e-2),
        data_loader=DataLoader(TensorDataset(texts(80)), batch_size=20),
        epsilon=8.0,
        delta=1e-3,
        epochs=2,
        out=folder,
        seed=1,
    )
    for _ in range(2):
        for batch in private.data_loader:
            private.step(batch)
    return private.finish()


@pytest.mark.parametrize("make", [gpt2, adapted])
def test_every_trained_parameter_gets_its_gradient(make):
    """Against the loop, parameter by parameter, at weights where no adapter is zero: nothing silently stays behind."""
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
    objective = Objective.of(model, ModelLosses(losses))
    theta = objective.layout.read(model)
    query = Query(points=(theta,), parts=(Part(coefficients=(1.0,), clip=0.01),))
    fast, slow = (engine(objective)(query, (texts(3),)).secret for engine in (GhostEngine, LoopEngine))
    for name, expected in objective.layout.split(slow).items():
        assert float(expected.norm()) > 0, name
        found = objective.layout.split(fast)[name]
        assert float((found - expected).norm() / expected.norm()) < 1e-4, name


def test_lora_learns_and_is_usable_from_its_file(tmp_path):
    """Issue 820: training looked normal, and the saved adapters were useless."""
    model = adapted()
    before = copy.deepcopy(model)
    run = trained(model, tmp_path / "run")
    assert verify(run.folder.path).ok
    moved = {
        n for (n, p), q in zip(model.named_parameters(), before.parameters(), strict=True) if not torch.equal(p, q)
    }
    assert moved == {name for name, p in model.named_parameters() if p.requires_grad}
    model.save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(gpt2(), tmp_path / "adapter").eval()
    with torch.no_grad():
        here, there = (m(input_ids=texts(3)).logits for m in (model.eval(), loaded))
        assert torch.equal(here, there)
        assert not torch.allclose(here, before.eval()(input_ids=texts(3)).logits, atol=1e-3)


def test_gpt2_is_fine_tuned_whole(tmp_path):
    """Issue 841: its position embedding and Conv1D layers stopped the first step."""
    model = gpt2()
    before = copy.deepcopy(model.state_dict())
    assert trained(model, tmp_path / "run").epsilon <= 8
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_loop_of_accelerates(tmp_path):
    """Accelerate puts the model on its device; draws, clips and noise stay ours."""
    accelerate = pytest.importorskip("accelerate", reason="pip install 'dpsrm[hf]'")
    accelerator = accelerate.Accelerator(cpu=True)
    model = gpt2()
    run = trained(model, tmp_path / "run", wrap=accelerator.prepare)
    assert verify(run.folder.path).ok
    other = gpt2()
    trained(other, tmp_path / "plain")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
