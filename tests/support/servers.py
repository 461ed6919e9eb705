"""Run tests that ask for `server` on both MariaDB and MySQL, because Binlake must behave the same on each target.

A folder takes part if its conftest has `pytest_generate_tests`, `server` and `empty_server`.
`@pytest.mark.servers("mariadb")` limits a test to some servers. `@pytest.mark.soak_on("mysql")` leaves one server's
half of a test to `make soak`; `soak_on()` exempts a test from its module's mark.
"""

from __future__ import annotations

import pytest

from deploy.local.mariadb import MariaDb

_FIXTURES = {"mariadb": "mariadb", "mysql": "mysql_target"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the test with each server."""
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
    """The session's server without the databases of earlier tests."""
    server.wipe()
    return server
