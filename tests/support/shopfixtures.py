"""Fixtures of the shop, for the conftest.py of tests that verify, repair and validate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from support.mariadb import MariaDb
from support.shop import Shop


@pytest.fixture(scope="session")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Callable[[MariaDb], Shop]:
    """The shop of each server, made once."""
    return cache(lambda server: Shop(tmp_path_factory.mktemp("shop"), server))


@pytest.fixture
def first_shop(server: MariaDb, shops: Callable[[MariaDb], Shop]) -> Shop:
    """A shop whose first window is in a lake; tests work on copies."""
    return shops(server)
