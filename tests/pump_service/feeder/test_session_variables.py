"""The variables of a session, at a server that this machine does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from pymysql import err

from binlake.common.sqllink import VARIABLES, Link, set_variables
from binlake.dialect.tokens import tokenize
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.model import Flavor, LoggedSession
from binlake.pump_service.feeder.tracker import ScratchServer

_READ_ONLY = "explicit_defaults_for_timestamp"


class OldServer:
    """A connection to a server with `VARIABLES`, of which no session may set one, as in MariaDB before 10.8."""

    server_version = "10.2.44-MariaDB-test"

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.refused = 0

    def query(self, sql: str) -> None:
        """Accept `sql`, or refuse it as the server does."""
        if _READ_ONLY in sql:
            self.refused += 1
            raise err.OperationalError(1238, f"Variable '{_READ_ONLY}' is a read only variable")
        self.accepted.append(sql)


def test_a_variable_that_no_session_may_set_costs_only_the_first_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first session sets the others one by one; the next one sets them in one statement."""
    known = {OldServer.server_version: frozenset(VARIABLES)}
    monkeypatch.setattr("binlake.common.sqllink._names", known)
    first, second = OldServer(), OldServer()
    set_variables(cast(Link, first))
    set_variables(cast(Link, second))
    assert (len(first.accepted), first.refused) == (len(VARIABLES) - 1, 2)
    assert (len(second.accepted), second.refused) == (1, 0)
    assert all(f"{name} = " in second.accepted[0] for name in VARIABLES if name != _READ_ONLY)


class MariaDb102:
    """A MariaDB 10.2.11: it answered so when it was tried. Its old_mode has no UTF8_IS_UTF8MB3."""

    server_version = "5.5.5-10.2.11-MariaDB-log"

    def __init__(self) -> None:
        self.accepted: list[str] = []

    def query(self, sql: str) -> None:
        """Accept `sql`, or refuse it as the server does."""
        if "UTF8_IS_UTF8MB3" in sql:
            raise err.OperationalError(1231, "Variable 'old_mode' can't be set to the value of 'UTF8_IS_UTF8MB3'")
        self.accepted.append(sql)


def test_a_server_that_does_not_know_a_value_gets_the_one_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its people's old_mode would otherwise stay, and each session would set all variables one by one."""
    monkeypatch.setattr("binlake.common.sqllink._names", {MariaDb102.server_version: frozenset(VARIABLES)})
    monkeypatch.setattr("binlake.common.sqllink._values", {})
    first, second = MariaDb102(), MariaDb102()
    set_variables(cast(Link, first))
    set_variables(cast(Link, second))
    assert "SET SESSION old_mode = ''" in first.accepted
    assert len(second.accepted) == 1
    assert "old_mode = ''" in second.accepted[0]


class Tidb:
    """A connection to a TiDB whose people chose another default collation."""

    server_version = "8.0.11-TiDB-v7.5.0"

    def __init__(self) -> None:
        self.accepted: list[str] = []

    def query(self, sql: str) -> None:
        """Accept `sql`."""
        self.accepted.append(sql)


def test_a_tidb_has_its_own_default_collation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its DDL without a collation would otherwise create other columns at a TiDB target than at the source."""
    monkeypatch.setattr(
        "binlake.common.sqllink._names", {Tidb.server_version: frozenset({"default_collation_for_utf8mb4"})}
    )
    monkeypatch.setattr("binlake.common.sqllink._query", lambda _link, _sql: [(0,)])
    server = Tidb()
    set_variables(cast(Link, server))
    assert server.accepted == ["SET SESSION default_collation_for_utf8mb4 = 'utf8mb4_bin'"]


class OldTracker:
    """The link to a tracker on a MariaDB before 10.8, where `explicit_defaults_for_timestamp` is only a global."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def query(self, sql: str) -> list[dict[str, object]]:
        """Answer as MariaDB 10.2.11 did."""
        if "@@SESSION.explicit" in sql:
            raise err.OperationalError(1238, "Variable 'explicit_defaults_for_timestamp' is a GLOBAL variable")
        return [{"IS_SET": 0}] if sql.startswith("SELECT") else []

    def execute(self, statements: Iterable[str], _sent: str) -> None:
        """Take `statements`."""
        self.executed += statements


@pytest.mark.parametrize(("logged", "is_sent"), [(False, False), (True, True), (None, False)])
def test_tracker_sets_time_defaults_only_if_they_differ(
    monkeypatch: pytest.MonkeyPatch, logged: bool | None, is_sent: bool
) -> None:
    """The log of a MariaDB 10.2 says what its tracker has anyway, and setting it stopped the source (error 1238)."""
    tracker, link = ScratchServer("one", Flavor.MARIADB, {}), OldTracker()
    monkeypatch.setattr(tracker, "_link", link)
    statement = SingleStatement("create", "d", "t", tuple(tokenize("CREATE TABLE t (a INT)")))
    tracker.run(statement, LoggedSession(sql_mode=0, explicit_defaults_for_timestamp=logged))
    assert any("explicit_defaults" in text for text in link.executed) == is_sent
