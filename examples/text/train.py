"""A byte-level language model of private texts, in full and by LoRA, beside the same without privacy.

    python examples/text/train.py                                  # all rows, about an hour on one core
    python examples/text/train.py --only lora --epsilon 3

What a record is, and what else is said about the results: docs/transformers.md. Every row goes to results.jsonl when it
is made; rows that are there are not made again.
"""

import argparse
import json
from pathlib import Path

import corpus
import numpy as np
import torch
from dpsrm import make_private
from model import ByteModel, bits_per_byte, losses

WAYS = {"scratch": 2e-3, "full": 1e-3, "lora": 4e-3}
"""How a model is trained, and its learning rate: all parameters from random values, all parameters of the public model,
adapters of the public model."""


def plain_steps(model, rows, *, batch, steps, rate):
    """Ordinary training: Adam over shuffled batches."""
    adam = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=rate)
    order = torch.Generator().manual_seed(0)
    for _ in range(steps):
        some = torch.randint(len(rows), (batch,), generator=order)
        loss = losses(model, {"text": torch.from_numpy(rows[some.numpy()])}).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


def public_model(rows, args):
    """The model trained on the manual, which is public: no privacy is spent."""
    path = args.out / "public.pt"
    torch.manual_seed(0)
    model = ByteModel()
    if not path.exists():
        plain_steps(model, rows, batch=64, steps=args.public_steps, rate=2e-3)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path))
    return model


def adapted(model):
    """The model with adapters of rank 8 beside its linear layers; only they are trained."""
    from peft import LoraConfig, get_peft_model

    places = ["attend", "mix", "widen", "narrow", "scores"]
    return get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=places))


def private_steps(model, rows, *, rate, args):
    """The same training, private; the texts stay in their file."""
    private = make_private(
        model=model,
        losses=losses,
        optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate),
        data={"text": rows},
        batch_size=args.batch,
        steps=args.steps,
        method="sgd",
        epsilon=args.epsilon,
        delta=1e-6,
        record="one docstring",
        seed=args.seed,
    )
    for at, batch in enumerate(private.data_loader, 1):
        private.step(batch)
        if at % 20 == 0:
            print(f"  {at} of {args.steps} steps, ε = {private.epsilon:.2f}", flush=True)
    return private.finish()


def row(way, rows, test, *, private, args):
    """Train one model and measure it on the texts held out."""
    torch.manual_seed(1)
    model = ByteModel() if way == "scratch" else public_model(np.load(args.out / "public.npy"), args)
    model = adapted(model) if way == "lora" else model
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = {"way": way, "parameters": trained, "records": len(rows), "batch": args.batch, "steps": args.steps}
    if private:
        run = private_steps(model, rows, rate=WAYS[way], args=args)
        found |= {"epsilon": round(run.epsilon, 4), "delta": 1e-6, "noise": run.plan.noise_multiplier}
    else:
        plain_steps(model, rows, batch=args.batch, steps=args.steps, rate=WAYS[way])
        found |= {"epsilon": None}
    return found | {"bits_per_byte": round(bits_per_byte(model, test), 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/text"))
    parser.add_argument("--records", type=int, help="at most so many texts (all)")
    parser.add_argument("--only", choices=WAYS, help="one way only")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--public-steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="research only: reproducible, not private")
    args = parser.parse_args()
    if not (args.out / "public.npy").exists():
        corpus.write(args.out, args.records)
    rows, test = np.load(args.out / "train.npy", mmap_mode="r"), np.load(args.out / "test.npy")
    table = args.out / "results.jsonl"
    made = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    known = {(old["way"], old.get("asked")) for old in made}
    if ("public", None) not in known:
        model = public_model(np.load(args.out / "public.npy"), args)
        add(table, {"way": "public", "asked": None, "epsilon": 0.0, "bits_per_byte": bits_per_byte(model, test)})
    for way in [args.only] if args.only else WAYS:
        for asked in (args.epsilon, "none"):
            if (way, asked) not in known:
                add(table, {"asked": asked, **row(way, rows, test, private=asked != "none", args=args)})


def add(table, found):
    """Keep a row and show it."""
    with table.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(found, flush=True)


if __name__ == "__main__":
    main()
