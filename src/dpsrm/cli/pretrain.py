"""`dpsrm pretrain`: CNN6's convolutions on public images, once, and the features they make of CIFAR-10."""

from __future__ import annotations

from dpsrm.cli.show import DataDir, Json, out, print_json, track


def pretrain(
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Pretrain CNN6's convolutions on CIFAR-100 and compute CIFAR-10's features; what is there already is not redone.

    `dpsrm reproduce cifar10-cnn6` does this by itself when it is needed.

    Example: dpsrm pretrain --data-dir data
    """
    from dpsrm.data.public import data_folder
    from dpsrm.experiments.problems import load_problem

    folder = data_folder(data_dir)
    facts = load_problem("cifar10-cnn6", folder, track).facts
    if as_json:
        print_json({"folder": str(folder / "cnn6"), **facts})
        return
    out.print(f"Weights and features are in {folder / 'cnn6'}.")
    out.print(f"Trunk {facts['trunk']}: {100 * float(facts['trunk_accuracy']):.1f} % right on held-out CIFAR-100.")
