"""Two-phase transactions: however they end, and whatever is killed meanwhile, each comes once, when it commits.

Random: sessions that prepare, commit, roll back, and disconnect leaving prepared transactions; reused names; new log
files; the server killed. A killed feeder continues from the last position that it made durable: each position is tried.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pymysql.connections import Connection
from support.mariadb import MariaDb, MySql, execute, mariadb_in_memory, mysql_in_memory, rows
from support.sourcelog import end_of, transactions_until_now

from binlake.errors import LostRange
from binlake.mysqlbinlog.events.query import Xid
from binlake.mysqlbinlog.model import SourceTransaction

pytestmark = [pytest.mark.mariadb, pytest.mark.long]

XIDS = (
    Xid(1, b"x", b""),
    Xid(1, b"x", b"branch"),
    Xid(7, b"x", b"branch"),
    Xid(1, b"\x00\xff'", b""),
    Xid(1, b"y", b""),
)


@pytest.fixture(scope="module", params=["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def own_server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server for this file only, because it is killed."""
    is_mysql = request.param == "mysql"
    options = (MySql if is_mysql else MariaDb).list_source_options(41)
    with mysql_in_memory(options) if is_mysql else mariadb_in_memory(options) as server:
        execute(server, "CREATE DATABASE two", "CREATE TABLE two.t (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")
        yield server


@pytest.fixture
def server(own_server: MariaDb) -> Iterator[MariaDb]:
    """A server without prepared transactions. Leftovers of a failed test are rolled back, so that the next test does
    not fail because of them."""
    yield own_server
    if list_prepared(own_server):
        own_server.end_sessions()
        wait_for_sessions(own_server)
        execute(own_server, *(f"XA ROLLBACK {xid}" for xid in list_prepared(own_server)))


def list_prepared(server: MariaDb) -> list[Xid]:
    """The transactions that are prepared on `server`."""
    with server.connect(use_unicode=False) as link, link.cursor() as cursor:
        cursor.execute("XA RECOVER")
        return [Xid(kind, name[:size], name[size : size + more]) for kind, size, more, name in cursor.fetchall()]


def wait_for_sessions(server: MariaDb, ids: Collection[int] = ()) -> None:
    """Wait until the sessions `ids` (none: all others) are gone; a server notices a disconnect only after a moment."""
    which = f"id IN ({', '.join(map(str, ids))})" if ids else "id <> CONNECTION_ID() AND user = 'root'"
    while rows(server, f"SELECT 1 FROM information_schema.processlist WHERE {which}"):
        pass


@dataclass
class Sessions:
    """Random sessions of `server`. `committed`: numbers of rows in the order of their commits."""

    server: MariaDb
    draw: random.Random
    committed: list[list[int]] = field(default_factory=list)
    _prepared: dict[Xid, list[int]] = field(default_factory=dict)
    _open: dict[Xid, Connection[Any]] = field(default_factory=dict)
    _number: int = 0

    def step(self) -> None:
        """Execute the next random action."""
        # For the servers, a name is the same whatever its format: it cannot be prepared in two of them.
        names = {xid[1:] for xid in self._prepared}
        free = [xid for xid in XIDS if xid[1:] not in names]
        kind = self.draw.choice(["plain", "prepare", "prepare", "end", "end", "one phase", "leave", "file"])
        if kind == "plain":
            with self._session() as link:
                self.committed.append(self._change(link))
        elif kind == "prepare" and free:
            self._prepare(self.draw.choice(free))
        elif kind == "end" and self._prepared:
            self._end(self.draw.choice(list(self._prepared)))
        elif kind == "one phase" and free:
            self._one_phase(self.draw.choice(free))
        elif kind == "leave" and self._open:
            self._leave(self.draw.choice(list(self._open)))
        elif kind == "file":
            execute(self.server, "FLUSH BINARY LOGS")

    def kill_server(self) -> None:
        """Restart the server with its prepared transactions; MySQL's recovery rolls some of them back."""
        self.server.kill9()
        self._open.clear()
        self.server.restart()
        lost = self._prepared.keys() - set(list_prepared(self.server))
        assert not lost or self.server.name == "mysql"
        for xid in lost:
            del self._prepared[xid]

    def end_all(self) -> None:
        """End all prepared transactions."""
        for xid in list(self._prepared):
            self._end(xid)

    def _session(self) -> Connection[Any]:
        return self.server.connect(database="two")

    def _change(self, link: Connection[Any]) -> list[int]:
        count = self.draw.randint(1, 3)
        numbers = [self._number + n for n in range(count)]
        self._number += count
        with link.cursor() as cursor:
            cursor.execute(f"INSERT INTO t (n) VALUES {', '.join(f'({n})' for n in numbers)}")
        return numbers

    def _prepare(self, xid: Xid) -> None:
        link = self._session()
        with link.cursor() as cursor:
            cursor.execute(f"XA START {xid}")
            self._prepared[xid] = self._change(link)
            cursor.execute(f"XA END {xid}")
            cursor.execute(f"XA PREPARE {xid}")
        self._open[xid] = link

    def _one_phase(self, xid: Xid) -> None:
        with self._session() as link, link.cursor() as cursor:
            cursor.execute(f"XA START {xid}")
            self.committed.append(self._change(link))
            cursor.execute(f"XA END {xid}")
            cursor.execute(f"XA COMMIT {xid} ONE PHASE")

    def _leave(self, xid: Xid) -> None:
        """The session disconnects, its prepared transaction stays."""
        link = self._open.pop(xid)
        gone = link.thread_id()  # type: ignore[no-untyped-call]
        link.close()
        wait_for_sessions(self.server, [gone])

    def _end(self, xid: Xid) -> None:
        commits = self.draw.random() < 0.7
        numbers, link = self._prepared.pop(xid), self._open.pop(xid, None)
        with link or self._session() as session, session.cursor() as cursor:
            cursor.execute(f"XA {'COMMIT' if commits else 'ROLLBACK'} {xid}")
        if commits:
            self.committed.append(numbers)


def read_numbers(transactions: list[SourceTransaction], first: int) -> list[list[int]]:
    """The rows of each transaction that has any, read from the end of each row."""
    numbers = []
    for transaction in transactions:
        data = b"".join(change.rows for change in transaction.changes)
        if data:
            numbers.append([int.from_bytes(data[at + 5 : at + 9], "little") for at in range(0, len(data), 9)])
    return numbers[first:]


def check_random_sessions(server: MariaDb, seed: int, steps: int) -> None:
    draw = random.Random(seed)
    start, sessions = end_of(server), Sessions(server, draw)
    killed_at = steps // 2
    for step in range(steps):
        sessions.step()
        if step == killed_at:
            sessions.kill_server()
    sessions.end_all()
    everything = transactions_until_now(server, start)
    assert read_numbers(everything, 0) == sessions.committed, f"seed {seed}"
    for index, transaction in enumerate(everything[:-1]):
        later = transactions_until_now(server, transaction.end)
        assert [(each.id, each.changes) for each in later] == [
            (each.id, each.changes) for each in everything[index + 1 :]
        ], f"seed {seed}, killed after {transaction.id}"


def test_prepared_transactions_come_once_when_they_commit(server: MariaDb) -> None:
    # S4-49, R-10
    check_random_sessions(server, 5, 24)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_random_sessions(server: MariaDb, seed: int) -> None:
    check_random_sessions(server, seed, 60)


def test_a_prepared_transaction_whose_log_is_purged_is_reported(server: MariaDb) -> None:
    with server.connect(database="two") as link, link.cursor() as cursor:
        for text in ("XA START 'gone'", "INSERT INTO t (n) VALUES (1)", "XA END 'gone'", "XA PREPARE 'gone'"):
            cursor.execute(text)
        execute(server, "FLUSH BINARY LOGS")
        since = end_of(server)
        execute(server, f"PURGE BINARY LOGS TO '{since.file}'")
        cursor.execute("XA COMMIT 'gone'")
    with pytest.raises(LostRange, match=r"transaction X'676f6e65'.* is committed, but the log"):
        transactions_until_now(server, since)
