"""Upstream's daily tests find their helper beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daily import Daily, daily_source
from support.mariadb import MariaDb


@pytest.fixture
def daily(mariadb: MariaDb) -> Iterator[Daily]:
    """A source with an empty database `daily`, and the session's MariaDB behind it."""
    with daily_source(mariadb) as source:
        yield source
