"""What every room's tests share: the repository on the path, and real servers as fixtures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `deploy` is not an installed package: tests and demo run it from the checkout.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.mariadb import MariaDb


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A running MariaDB 10.11 of this test session; tests make and drop databases of their own."""
    server = MariaDb()
    try:
        yield server.start()
    finally:
        server.stop()
