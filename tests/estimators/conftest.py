"""The noise of these tests is fixed, so that what they ask of accuracy is always or never true."""

import hashlib
from itertools import count
from types import SimpleNamespace

import pytest

from dpsrm.core import secret


@pytest.fixture(scope="module", autouse=True)
def _fixed():
    """Keys of streams in a row of their own instead of the operating system's."""
    keys = SimpleNamespace(numbers=count())

    def token_bytes(size):
        return hashlib.sha256(f"test {next(keys.numbers)}".encode()).digest()[:size]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret, "secrets", SimpleNamespace(token_bytes=token_bytes))
        yield keys


@pytest.fixture(autouse=True)
def _from_the_beginning(_fixed):
    """Each test has the same keys, whichever tests ran before it."""
    _fixed.numbers = count()
