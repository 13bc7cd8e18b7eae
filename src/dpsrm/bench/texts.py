"""Made-up texts for models of transformers, and one loss per example of what those models return."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sentences(model: nn.Module, count: int, length: int) -> dict[str, Tensor]:
    """Made-up sentences of different lengths, padded to one, with their masks and classes."""
    words = next(module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))
    lengths_B1 = torch.randint(max(1, length // 2), length + 1, (count, 1))
    mask_BT = torch.arange(length).expand(count, -1) < lengths_B1
    ids_BT = torch.randint(1, words, (count, length)) * mask_BT
    return {"input_ids": ids_BT, "attention_mask": mask_BT.long(), "labels": torch.randint(2, (count,))}


def class_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy of every sentence."""
    found = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return F.cross_entropy(getattr(found, "logits", found), batch["labels"], reduction="none")


def next_word_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the next word, for every text."""
    ids_BT = batch["input_ids"]
    logits_BTV = model(input_ids=ids_BT).logits[:, :-1]
    return F.cross_entropy(logits_BTV.transpose(1, 2), ids_BT[:, 1:], reduction="none").mean(1)


def image_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of every image, of a model of transformers."""
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1], reduction="none")
