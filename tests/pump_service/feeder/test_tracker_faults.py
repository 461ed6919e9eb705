"""A tracker that fails at any point of a DDL: the definitions equal those of a tracker that did not fail."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pymysql.connections import Connection
from support.mariadb import MariaDb, execute, rows
from support.tcplink import TcpLink

from binlake.errors import SchemaError, SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import SCRATCH_PREFIX
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.catalog import Catalog, SourceNames
from binlake.pump_service.feeder.tracker import ScratchServer

SCRIPT = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'x')",
    "CREATE TABLE u LIKE t",
    "ALTER TABLE t ADD w INT DEFAULT 5, MODIFY v VARCHAR(20)",
    "CREATE TABLE _u_new LIKE u",
    "ALTER TABLE _u_new ADD x INT",
    "RENAME TABLE u TO _u_old, _u_new TO u",
    "RENAME TABLE t TO t2, u TO t",
    "TRUNCATE TABLE t",
    "ALTER DATABASE shop CHARACTER SET latin1",
    "DROP TABLE t2",
)
MOMENTS = ("before", "in the middle of", "after")


@dataclass
class Breaker:
    """Breaks the tracker's connection at its `at`-th command from now: before it is sent, before its answer is read
    (the server may have executed it or not), or after it."""

    at: int = 0
    moment: str = ""
    commands: int = field(default=0, init=False)

    def arm(self, at: int, moment: str) -> None:
        self.at, self.moment, self.commands = at, moment, 0

    def hooked(self, connection: Connection[Any], query: Any, read: Any) -> Any:
        self.commands += 1
        is_now = self.commands == self.at
        if is_now and self.moment == "before":
            connection._force_close()  # type: ignore[attr-defined]
        if is_now and self.moment == "in the middle of":
            connection._execute_command(3, query)  # type: ignore[attr-defined]
            connection._force_close()  # type: ignore[attr-defined]
        answer = read()
        if is_now and self.moment == "after":
            connection._force_close()  # type: ignore[attr-defined]
        return answer


@pytest.fixture
def breaker(monkeypatch: pytest.MonkeyPatch) -> Breaker:
    made, query = Breaker(), Connection.query

    def hooked(connection: Connection[Any], sql: Any, unbuffered: bool = False) -> Any:
        return made.hooked(connection, sql, lambda: query(connection, sql, unbuffered))

    monkeypatch.setattr(Connection, "query", hooked)
    return made


class Tracked:
    """A catalog whose tracker is `server`."""

    def __init__(self, server: MariaDb, source: str = "broken", **connect: Any) -> None:
        own = {"host": server.host, "port": server.port, "user": server.user, "ssl_disabled": True}
        self.tracker = ScratchServer(source, Flavor.MARIADB, {**own, **connect})
        names = SourceNames(source, Flavor.MARIADB)
        self.source, self.catalog = source, Catalog([names], {source: self.tracker}, [])

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what is followed in the block; the tracker's contents stay, and are rebuilt."""
        follower = self.catalog._followers[self.source]
        undo, online = self.catalog._writer.save_state(), dict(follower.online)
        follower.invalidate_tracker()
        yield
        undo()
        follower.online = online
        follower.invalidate_tracker()

    def follow(self, text: str) -> list[str]:
        """Follow a statement; returns the jobs that are published."""
        changes = self.catalog.follow(self.source, LoggedStatement("shop", text, LoggedSession(timestamp_us=1)))
        return [repr(change.body).replace(self.source, "SOURCE") for change in changes]

    def definitions(self) -> str:
        """All definitions of the catalog."""
        return repr(list(self.catalog.state.to_rows())).replace(self.source, "SOURCE")


@pytest.fixture
def tracked(empty_mariadb: MariaDb) -> Iterator[Tracked]:
    made = Tracked(empty_mariadb)
    yield made
    made.tracker.close()


@pytest.mark.parametrize("draws", [2, pytest.param(0, marks=pytest.mark.soak)], ids=["drawn", "every command"])
def test_the_tracker_may_fail_before_during_and_after_each_command(
    draws: int, tracked: Tracked, breaker: Breaker, empty_mariadb: MariaDb
) -> None:
    # S4-01
    draw, undisturbed = random.Random(18), Tracked(empty_mariadb, "quiet")
    broken = 0
    for text in SCRIPT:
        wanted = undisturbed.follow(text)
        breaker.arm(0, "")
        with tracked.undone():
            tracked.follow(text)
        every = range(1, breaker.commands + 1)
        for moment in MOMENTS:
            for at in draw.sample(every, min(draws or len(every), len(every))):
                with tracked.undone():
                    assert follow_with_retries(tracked, text, breaker, at, moment) == wanted, (text, at, moment)
                broken += 1
        breaker.arm(0, "")
        assert tracked.follow(text) == wanted
    assert broken > 50
    assert tracked.definitions() == undisturbed.definitions()
    undisturbed.tracker.close()


def follow_with_retries(tracked: Tracked, text: str, breaker: Breaker, at: int, moment: str) -> list[str]:
    """Retry until the tracker is available, as the worker does."""
    version = tracked.catalog.version
    breaker.arm(at, moment)
    for _ in range(3):
        with contextlib.suppress(SourceUnavailable):
            return tracked.follow(text)
        assert tracked.catalog.version == version, "a failed attempt has changed nothing"
    raise AssertionError(f"{text}: broken {moment} command {at}, and never again there")


def test_a_silent_network_does_not_block_forever(empty_mariadb: MariaDb) -> None:
    with TcpLink(empty_mariadb.host, empty_mariadb.port) as link:
        tracked = Tracked(empty_mariadb, host=link.host, port=link.port, read_timeout=0.2)
        tracked.follow("CREATE DATABASE shop")
        link.freeze()
        with pytest.raises(SourceUnavailable, match="was lost"):
            tracked.follow("CREATE TABLE t (id INT PRIMARY KEY)")
        link.cut()
        with pytest.raises(SourceUnavailable):
            tracked.follow("CREATE TABLE t (id INT PRIMARY KEY)")
        link.mend()
        assert len(tracked.follow("CREATE TABLE t (id INT PRIMARY KEY)")) == 1
        tracked.tracker.close()


def test_a_tracker_that_lost_its_databases_gets_them_again(tracked: Tracked, empty_mariadb: MariaDb) -> None:
    for text in SCRIPT[:2]:
        tracked.follow(text)
    execute(empty_mariadb, f"DROP DATABASE `{SCRATCH_PREFIX}broken__shop`")
    assert len(tracked.follow("ALTER TABLE t ADD y INT")) == 1
    with pytest.raises(SchemaError, match="refuses"):
        tracked.follow("ALTER TABLE t ADD y INT")


def test_the_feeder_waits_for_a_tracker_that_accepts_no_statements(tracked: Tracked, empty_mariadb: MariaDb) -> None:
    tracked.follow(SCRIPT[0])
    tracked.follow(SCRIPT[1])
    with empty_mariadb.connect() as other, other.cursor() as cursor:
        cursor.execute(f"LOCK TABLES `{SCRATCH_PREFIX}broken__shop`.t READ")
        tracked.tracker._link.execute(["SET SESSION lock_wait_timeout = 0"])
        with pytest.raises(SourceUnavailable, match="no statements now"):
            tracked.follow("ALTER TABLE t ADD y INT")
        cursor.execute("UNLOCK TABLES")
    assert len(tracked.follow("ALTER TABLE t ADD y INT")) == 1


@pytest.mark.parametrize("names", [("a", "a__b"), ("a", "a_"), ("a", "A"), ("x" * 50, "x" * 51)])
def test_no_source_drops_databases_of_another_one_at_the_tracker(
    names: tuple[str, str], empty_mariadb: MariaDb
) -> None:
    trackers = [Tracked(empty_mariadb, name) for name in names]
    for tracker in trackers:
        tracker.follow("CREATE DATABASE shop")
    for tracker in trackers:
        tracker.catalog._followers[tracker.source].invalidate_tracker()
        tracker.follow("CREATE TABLE t (id INT PRIMARY KEY)")
    prefix = SCRATCH_PREFIX.replace("_", "\\_")
    assert len(rows(empty_mariadb, f"SHOW DATABASES LIKE '{prefix}%'")) == 2
    for tracker in trackers:
        tracker.follow("DROP TABLE t")
        tracker.tracker.close()


def test_two_sessions_of_one_source_are_distinguished(
    tracked: Tracked, empty_mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.pump_service.feeder.tracker._SESSION_WAIT_S", 0)
    tracked.follow(SCRIPT[0])
    twin = Tracked(empty_mariadb)
    with pytest.raises(SourceUnavailable, match="another session") as waits:
        twin.follow(SCRIPT[0])
    lock = f"'{SCRATCH_PREFIX}broken__'"
    (connection_id,) = rows(empty_mariadb, f"SELECT IS_USED_LOCK({lock})")
    assert waits.value.where["session"] == str(connection_id[0])
    execute(empty_mariadb, f"KILL {connection_id[0]}", f"SELECT GET_LOCK({lock}, 60)", f"SELECT RELEASE_LOCK({lock})")
    assert len(twin.follow(SCRIPT[0])) == 1
    twin.tracker.close()
