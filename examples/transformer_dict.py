"""A transformer whose batches are dictionaries (ids, mask, labels), padded by one's own collate function.

A collate function is given each record alone, so it must pad to a fixed length: padding to the longest of the batch
would let one record change all others. Run it with: python transformer_dict.py
"""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from torch import nn
from torch.utils.data import DataLoader

WORDS, LONGEST = 100, 24


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places(torch.arange(LONGEST))
        x = self.encoder(x, src_key_padding_mask=~attention_mask)
        share = attention_mask / attention_mask.sum(1, keepdim=True)
        return self.head((share.unsqueeze(2) * x).sum(1))


def collate(records):
    ids, mask = torch.zeros(len(records), LONGEST, dtype=torch.long), torch.zeros(len(records), LONGEST, dtype=bool)
    for row, record in enumerate(records):
        ids[row, : len(record["words"])], mask[row, : len(record["words"])] = record["words"], True
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([r["label"] for r in records])}


def losses(model, batch):
    return F.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["labels"], reduction="none")


n = int(os.environ.get("EXAMPLE_RECORDS", "4000"))  # made-up sentences: does word 1 occur in them?
sentences = [torch.randint(1, WORDS // 5, (int(length),)) for length in torch.randint(4, LONGEST, (n + 200,))]
records = [{"words": words, "label": int((words == 1).any())} for words in sentences]
model = Classifier()
loader = DataLoader(records[200:], batch_size=n // 20, collate_fn=collate)
adam = torch.optim.Adam(model.parameters(), lr=2e-3)
private = make_private(model=model, losses=losses, optimizer=adam, data_loader=loader, epochs=3, epsilon=8, delta=1e-5)
held_out = collate(records[:200])
for epoch in range(3):
    for batch in private.data_loader:
        private.step(batch)
    with torch.no_grad():
        scores = model(held_out["input_ids"], held_out["attention_mask"])
    right = (scores.argmax(1) == held_out["labels"]).float().mean()
    print(f"epoch {epoch + 1}: ε = {private.epsilon:.2f}, {right:.1%} of the held-out sentences")
run = private.finish()
print(f"ε = {run.epsilon:.3f}, in {run.folder.path}")
