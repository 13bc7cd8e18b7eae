"""GPT-2 fine-tuned on text, all parameters, head and embedding tied. Run it: python transformers_gpt2.py

One record is one text: who wrote a text is what is protected. Made-up sums such as "3+4=7." and random weights here;
with a model of yours, write model = GPT2LMHeadModel.from_pretrained("gpt2", use_cache=False).
"""

import os

import torch
import torch.nn.functional as F
from dpsrm import make_private
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

LETTERS, LENGTH = "0123456789+=. ", 24


def text():
    sums = [(int(a), int(b)) for a, b in torch.randint(0, 5, (LENGTH // 6, 2))]
    letters = "".join(f"{a}+{b}={a + b}. " for a, b in sums)[:LENGTH]
    return {"input_ids": torch.tensor([LETTERS.index(letter) for letter in letters])}


def losses(model, batch):
    ids = batch["input_ids"]
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


n = int(os.environ.get("EXAMPLE_RECORDS", "4000"))
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(LETTERS),
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
)
loader = DataLoader([text() for _ in range(n)], batch_size=n // 20)
adam = torch.optim.AdamW(model.parameters(), lr=3e-3)
private = make_private(model=model, losses=losses, optimizer=adam, data_loader=loader, epochs=3, epsilon=8, delta=1e-5)
for epoch in range(3):
    for batch in private.data_loader:
        progress = private.step(batch)
    print(f"epoch {epoch + 1}: ε = {private.epsilon:.2f}, loss {progress.private.loss:.3f} (for your eyes only)")
run = private.finish()
start = torch.tensor([[LETTERS.index(letter) for letter in "2+2="]])
with torch.no_grad():
    best = model(input_ids=start).logits[0, -1].argmax()
print(f"2+2={LETTERS[int(best)]}; ε = {run.epsilon:.3f}, in {run.folder.path}")
