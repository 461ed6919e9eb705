"""What verify reports, and what repairs and backfills write, is tested on MariaDB and on MySQL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from support import servers
from support.mariadb import MariaDb
from support.shop import Shop

pytest_generate_tests, server, empty_server = servers.pytest_generate_tests, servers.server, servers.empty_server


@pytest.fixture(scope="session")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Callable[[MariaDb], Shop]:
    """The shop of each server, made once."""
    return cache(lambda server: Shop(tmp_path_factory.mktemp("shop"), server))


@pytest.fixture
def first_shop(server: MariaDb, shops: Callable[[MariaDb], Shop]) -> Shop:
    """A shop whose first window is in a lake; tests work on copies."""
    return shops(server)
