"""Models of transformers and peft, from their configurations, with random weights and without dropout."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn

from dpsrm.core.errors import need_extra


def _made(name: str, **settings: Any) -> nn.Module:
    """The model of transformers called `name`, from a configuration of its kind."""
    need_extra("transformers", extra="hf")
    import transformers

    kind = getattr(transformers, name)
    made: nn.Module = kind(kind.config_class(**settings))
    return made


def bert(tiny: bool) -> nn.Module:
    """BERT with a head for two classes: 4 layers of width 256 and the usual 30 522 words."""
    d = 8 if tiny else 256
    return _made(
        "BertForSequenceClassification",
        vocab_size=50 if tiny else 30522,
        hidden_size=d,
        intermediate_size=4 * d,
        num_hidden_layers=2 if tiny else 4,
        num_attention_heads=2 if tiny else 4,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def distilbert(tiny: bool) -> nn.Module:
    """DistilBERT with a head for two classes: 3 layers of width 256."""
    d = 8 if tiny else 256
    return _made(
        "DistilBertForSequenceClassification",
        vocab_size=50 if tiny else 30522,
        dim=d,
        n_layers=2 if tiny else 3,
        n_heads=2 if tiny else 4,
        hidden_dim=4 * d,
        max_position_embeddings=128,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )


def lora(tiny: bool) -> nn.Module:
    """BERT as above, frozen, with LoRA of rank 8 on queries and values and a trained head."""
    need_extra("peft", extra="hf")
    import peft

    rank = 2 if tiny else 8
    config = peft.LoraConfig(task_type="SEQ_CLS", r=rank, lora_dropout=0.0, target_modules=["query", "value"])
    base: Any = bert(tiny)
    with warnings.catch_warnings():  # peft asks transformers by a name that is going away
        warnings.simplefilter("ignore")
        wrapped: nn.Module = peft.get_peft_model(base, config)
    return wrapped


def gpt2(tiny: bool) -> nn.Module:
    """GPT-2 with its tied head: 4 layers of width 256, 8192 words."""
    return _made(
        "GPT2LMHeadModel",
        vocab_size=50 if tiny else 8192,
        n_embd=8 if tiny else 256,
        n_layer=2 if tiny else 4,
        n_head=2 if tiny else 4,
        n_positions=128,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def llama(tiny: bool) -> nn.Module:
    """A Llama with grouped queries and a tied head: 4 layers of width 256, 32 000 words."""
    d = 8 if tiny else 256
    return _made(
        "LlamaForCausalLM",
        vocab_size=50 if tiny else 32000,
        hidden_size=d,
        intermediate_size=3 * d,
        num_hidden_layers=2 if tiny else 4,
        num_attention_heads=4 if tiny else 8,
        num_key_value_heads=2 if tiny else 4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def vit(tiny: bool) -> nn.Module:
    """A vision transformer for images of 32 × 32 in patches of 4 × 4: 4 layers of width 256."""
    d = 8 if tiny else 256
    return _made(
        "ViTForImageClassification",
        image_size=8 if tiny else 32,
        patch_size=4,
        hidden_size=d,
        intermediate_size=4 * d,
        num_hidden_layers=2 if tiny else 4,
        num_attention_heads=2 if tiny else 4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )


class T5Classifier(nn.Module):
    """T5's encoder, the mean over its words, two classes."""

    def __init__(self, tiny: bool) -> None:
        """4 layers of width 256."""
        super().__init__()
        d = 8 if tiny else 256
        self.encoder = _made(
            "T5EncoderModel",
            vocab_size=50 if tiny else 8192,
            d_model=d,
            d_kv=d // 4,
            d_ff=4 * d,
            num_layers=2 if tiny else 4,
            num_heads=4,
            dropout_rate=0.0,
        )
        self.head = nn.Linear(d, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The class scores."""
        x_BTD = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        share_BT1 = (attention_mask / attention_mask.sum(1, keepdim=True)).unsqueeze(2).to(x_BTD.dtype)
        scores: Tensor = self.head((x_BTD * share_BT1).sum(1))
        return scores


def mamba(tiny: bool) -> nn.Module:
    """Mamba with its tied head, by the slow path that needs no compiled kernels: 2 layers of width 128."""
    return _made(
        "MambaForCausalLM",
        vocab_size=50 if tiny else 8192,
        hidden_size=8 if tiny else 128,
        state_size=4 if tiny else 16,
        num_hidden_layers=2,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
