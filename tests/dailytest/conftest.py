"""Upstream's daily tests find their helper beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mariadb import MariaDb

sys.path.insert(0, str(Path(__file__).resolve().parent))

from daily import Daily, daily_source


@pytest.fixture
def daily(mariadb: MariaDb) -> Iterator[Daily]:
    """A source with an empty database `daily`, and the session's MariaDB behind it."""
    with daily_source(mariadb) as source:
        yield source
