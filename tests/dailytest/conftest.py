"""Upstream's daily tests import their helper module from this folder, and run on MariaDB and on MySQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daily import Daily, daily_source
from support import servers
from support.mariadb import MariaDb

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server


@pytest.fixture
def daily(server: MariaDb) -> Iterator[Daily]:
    """A source with an empty database `daily`, and the session's server as its target."""
    with daily_source(server) as source:
        yield source
