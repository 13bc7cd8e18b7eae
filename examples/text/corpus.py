"""Text that is on every machine that can run dpsrm: docstrings of its packages, and Python's own manual.

One private record is one docstring, its first `LENGTH` bytes: what somebody wrote about one function. Think of one note
or one message. Nothing is downloaded. The manual (what `help("if")` prints) plays the part of public text.
"""

import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

LENGTH = 64
END = 0  # fills up what is shorter; no byte of a text
PACKAGES = ("numpy", "scipy", "sympy", "torch", "numba")  # dpsrm's own dependencies, and theirs


def docstrings(most=None):
    """Different docstrings of at least 40 bytes, shuffled by a fixed order; at most `most` of them."""
    found = {}
    for package in PACKAGES:
        for path in sorted(Path(sysconfig.get_paths()["purelib"], package).rglob("*.py")):
            for text in re.findall(rb'"""(.*?)"""', path.read_bytes(), re.S):
                words = b" ".join(text.split())
                if len(words) >= 40:
                    found[words[:LENGTH]] = None
        if most is not None and len(found) >= most:
            break
    texts = list(found)
    return [texts[i] for i in np.random.default_rng(0).permutation(len(texts))][:most]


def manual():
    """Python's manual in pieces of `LENGTH` bytes."""
    text = " ".join(" ".join(topics.values()).split()).encode()
    return [text[at : at + LENGTH] for at in range(0, len(text) - LENGTH, LENGTH)]


def as_bytes(texts):
    """A row of `LENGTH` bytes per text."""
    return np.frombuffer(b"".join(text.ljust(LENGTH, bytes([END])) for text in texts), np.uint8).reshape(-1, LENGTH)


def write(folder, most=None):
    """Write train.npy, test.npy (a tenth) and public.npy into `folder`; train.npy can then be memory-mapped."""
    rows = as_bytes(docstrings(most))
    held_out = len(rows) // 10
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "test.npy", rows[:held_out])
    np.save(folder / "train.npy", rows[held_out:])
    np.save(folder / "public.npy", as_bytes(manual())[:most])
