"""LoRA (peft) on a frozen BERT with attention masks: only the adapters and the head are trained, privately.

Run it: python transformers_lora.py. Made-up records and random weights, so that nothing is fetched.
"""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

WORDS, LONGEST = 50, 16


def record():
    length = int(torch.randint(4, LONGEST + 1, ()))
    ids = torch.randint(1, WORDS, (length,))
    mask = F.pad(torch.ones(length, dtype=torch.long), (0, LONGEST - length))
    return {"input_ids": F.pad(ids, (0, LONGEST - length)), "attention_mask": mask, "labels": int(ids[0] < WORDS // 2)}


def losses(model, batch):
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return F.cross_entropy(scores, batch["labels"], reduction="none")


n = int(os.environ.get("EXAMPLE_RECORDS", "4000"))
base = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
lora = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["query", "value"])
model = get_peft_model(base, lora)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
print(f"{sum(p.numel() for p in trained)} of {sum(p.numel() for p in model.parameters())} parameters are trained")
loader = DataLoader([record() for _ in range(n)], batch_size=n // 20)
private = make_private(
    model=model,
    losses=losses,
    optimizer=torch.optim.AdamW(trained, lr=2e-3),
    data_loader=loader,
    epochs=3,
    epsilon=8,
    delta=1e-5,
)
for _ in range(3):
    for batch in private.data_loader:
        private.step(batch)
run = private.finish()
model.save_pretrained("adapter")  # peft's own file, holding the adapters that were released
print(f"ε = {run.epsilon:.3f}, in {run.folder.path}")
