"""Tests that ask for `server` run on a MariaDB and on a MySQL: whatever a target may be, it does the same.

A room takes part by having `pytest_generate_tests`, `server` and `empty_server` in its conftest.
`@pytest.mark.servers("mariadb")` limits a test to some; `@pytest.mark.soak_on("mysql")` leaves a test's other half to
`make soak`, and `soak_on()` takes one test out of that of its module.
"""

from __future__ import annotations

import pytest

from deploy.local.mariadb import MariaDb

_FIXTURES = {"mariadb": "mariadb", "mysql": "mysql_target"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each server."""
    if "server" in metafunc.fixturenames:
        only, later = (metafunc.definition.get_closest_marker(name) for name in ("servers", "soak_on"))
        names = only.args if only else _FIXTURES
        soaked = later.args if later else ()
        params = [pytest.param(name, marks=[pytest.mark.soak] if name in soaked else []) for name in names]
        metafunc.parametrize("server", params, indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> MariaDb:
    """The session's MariaDB or MySQL."""
    found: MariaDb = request.getfixturevalue(_FIXTURES[request.param])
    return found


@pytest.fixture
def empty_server(server: MariaDb) -> MariaDb:
    """The same without any database of a test before."""
    server.wipe()
    return server
