"""Run tests that ask for `server` on MariaDB or on MySQL, because Binlake must behave the same on each target.

A folder takes part if its conftest has `pytest_generate_tests`, `server` and `empty_server`. `make test` runs each case
of a test on one of the servers, and `make soak` on the other one as well. MySQL gets one case of four: its DDL, of
which tests have many, takes five times the CPU of MariaDB's. A test that names a server in its own text, because it
expects something else of each, runs on both in `make test`.
`@pytest.mark.servers("mariadb")` limits a test to some servers. `@pytest.mark.soak_on("mysql")` leaves one server's
half of a test to `make soak`; `soak_on()` exempts a test from its module's mark. `soak_on` also works for a fixture or
parameter of another name whose values are the servers' names, for example a source.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import pytest

from deploy.local.mariadb import MariaDb

_FIXTURES = {"mariadb": "mariadb", "mysql": "mysql_target"}
_FAMILIES = ("mariadb", "mysql")
_TURNS = ("mariadb", "mysql", "mariadb", "mariadb")


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
    """Mark `soak` all but one server of each case of a test, unless the test tells the servers apart.

    A checksum of the case's id chooses the server, so that no test and no parameter goes with one server alone.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        later = item.get_closest_marker("soak_on")
        if later is not None and _is_on(item, later.args):
            item.add_marker(pytest.mark.soak)
        server = _server_of(item)
        if server and item.get_closest_marker("soak") is None:
            test, _, parameters = item.nodeid.partition("[")
            cases.setdefault(f"{test} {parameters.replace(server, '', 1)}", []).append(item)
    for case, servers in cases.items():
        turn = _TURNS[crc32(case.encode()) % len(_TURNS)]
        chosen = next((one for one in servers if _server_of(one) == turn), servers[0])
        for item in servers:
            if item is not chosen and not _names_a_server(item):
                item.add_marker(pytest.mark.soak)


def _names_a_server(item: pytest.Item) -> bool:
    """True if a text in the test's own function names a server."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    texts = [one for one in getattr(code, "co_consts", ()) if isinstance(one, str)]
    return any(family in text.lower() for text in texts for family in _FAMILIES)


def _server_of(item: pytest.Item) -> str:
    """The name of the server that `item` is parametrized with, empty if with none."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("server", ""))


def _is_on(item: pytest.Item, families: Sequence[str]) -> bool:
    """True if a parameter of `item` is a server of one of `families`: `mysql`, `mariadb_source`, a flavour."""
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    texts = [value for one in values if isinstance(value := getattr(one, "value", one), str)]
    return any(text.partition("_")[0] in families for text in texts)
