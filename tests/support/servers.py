"""Run tests that ask for `server` on both MariaDB and MySQL, because Binlake must behave the same on each target.

A folder takes part if its conftest has `pytest_generate_tests`, `server` and `empty_server`.
`@pytest.mark.servers("mariadb")` limits a test to some servers. `@pytest.mark.soak_on("mysql")` leaves one server's
half of a test to `make soak`; `soak_on()` exempts a test from its module's mark. Tests with many cases run each case on
one of the servers, and `make soak` on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest

from deploy.local.mariadb import MariaDb

_FIXTURES = {"mariadb": "mariadb", "mysql": "mysql_target"}
_MANY_CASES = 4


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


def leave_other_server_to_soak(items: Sequence[pytest.Item]) -> None:
    """Mark `soak` all but one server of each case of a test with `_MANY_CASES` cases or more.

    A checksum of the case's name chooses the server, so that no parameter of the test goes with one server alone.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        server = _server_of(item)
        if server and item.get_closest_marker("soak") is None:
            test, _, parameters = item.nodeid.partition("[")
            case = parameters.replace(server, "", 1)
            tests.setdefault(test, {}).setdefault(case, []).append(item)
    for cases in tests.values():
        if len(cases) >= _MANY_CASES:
            for case, servers in cases.items():
                chosen = servers[crc32(case.encode()) % len(servers)]
                for item in servers:
                    if item is not chosen:
                        item.add_marker(pytest.mark.soak)


def _server_of(item: pytest.Item) -> str:
    """The name of the server that `item` is parametrized with, empty if with none."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("server", ""))
