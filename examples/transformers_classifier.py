"""A BERT classifier with attention masks in one's own loop, all parameters private.

Run it: python transformers_classifier.py
Made-up sentences and random weights, so that nothing is fetched; with a model of yours, write
model = AutoModelForSequenceClassification.from_pretrained(NAME) and let its tokenizer pad every record to one length.
"""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

LONGEST, WORDS = 16, ["<pad>", "a", "very", "good", "bad", "film", "with", "actors", "and", "music"]


def encoded(words, label):
    ids = torch.tensor([WORDS.index(word) for word in words])
    padding = LONGEST - len(ids)
    mask = torch.ones(len(ids), dtype=torch.long)
    return {"input_ids": F.pad(ids, (0, padding)), "attention_mask": F.pad(mask, (0, padding)), "labels": label}


def sentence():
    label = int(torch.randint(2, ()))
    words = [WORDS[i] for i in torch.randint(5, len(WORDS), (int(torch.randint(3, LONGEST - 2, ())),))]
    return encoded(["a", "very", ["bad", "good"][label], *words], label)


def losses(model, batch):
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return F.cross_entropy(scores, batch["labels"], reduction="none")


n = int(os.environ.get("EXAMPLE_RECORDS", "4000"))
records = [sentence() for _ in range(n + 200)]
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
)
loader = DataLoader(records[200:], batch_size=n // 20)
adam = torch.optim.Adam(model.parameters(), lr=2e-3)
private = make_private(model=model, losses=losses, optimizer=adam, data_loader=loader, epochs=3, epsilon=8, delta=1e-5)
held_out = next(iter(DataLoader(records[:200], batch_size=200)))
for epoch in range(3):
    for batch in private.data_loader:
        private.step(batch)
    with torch.no_grad():
        scores = model(input_ids=held_out["input_ids"], attention_mask=held_out["attention_mask"]).logits
    right = (scores.argmax(1) == held_out["labels"]).float().mean()
    print(f"epoch {epoch + 1}: ε = {private.epsilon:.2f}, {right:.1%} of the held-out sentences")
run = private.finish()
print(f"ε = {run.epsilon:.3f}, in {run.folder.path}")
