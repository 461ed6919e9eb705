"""A name gets the rows of another table while a load reads it, or a server lacks transactions that the load has read.

RENAME and EXCHANGE PARTITION do not change any definition, and a snapshot shows under a name the rows of the table that
has the name now: no server refuses that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, SERVER_ID, DyingPumps, Loaded, committed, rows_left, rows_of
from support.mariadb import MariaDb, MySql, execute, rows

from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.events.gtid import MariaDbGtidSet, MySqlGtidSet
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.server import connect, read_log_end
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkWriter
from binlake.pump_service.feeder.snapshot.loading import SnapshotLoader
from binlake.pump_service.feeder.snapshot.loadstate import LoadState, SnapshotPosition
from binlake.rows.codec import decode_transaction, encode_commit_binlog

pytestmark = pytest.mark.mariadb

OTHER = "ffffffff-1111-2222-3333-444444444444"
SMALL = {"chunk-rows": 10, "threads": 1}
SWAP = f"RENAME TABLE {DB}.a TO {DB}.x, {DB}.b TO {DB}.a, {DB}.x TO {DB}.b"
EXCHANGE = f"ALTER TABLE {DB}.p EXCHANGE PARTITION p0 WITH TABLE {DB}.a"
MOVED = {SWAP: {"a": 2, "b": 1, "p": 3}, EXCHANGE: {"a": 3, "b": 2, "p": 1}}
"""The values of `v` in each table after the statement; before it they are 1, 2 and 3."""


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES", 1)
    monkeypatch.setattr("binlake.pump_service.feeder.snapshot.loading._RETRY_S", 0.0)


@pytest.fixture(params=["mariadb_source", "mysql"])
def either(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    server: MariaDb = request.getfixturevalue(request.param)
    columns = "(id INT PRIMARY KEY, v INT)"
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150) SELECT i, 0 FROM n"
    execute(
        server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}", f"CREATE TABLE {DB}._first {columns}",
        f"INSERT INTO {DB}._first {numbers}", *(f"CREATE TABLE {DB}.{name} {columns}" for name in "ab"),
        f"CREATE TABLE {DB}.p {columns} PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))",
        *(f"INSERT INTO {DB}.{name} VALUES (1, {n}), (2, {n})" for name, n in (("a", 1), ("b", 2), ("p", 3))),
        f"ANALYZE TABLE {DB}._first, {DB}.a, {DB}.b, {DB}.p",
    )  # fmt: skip
    yield server
    execute(server, f"DROP DATABASE IF EXISTS {DB}")


def load(server: MariaDb, folder: Path, pumps: DyingPumps, clock: CountingClock) -> int:
    """Start or continue the load; returns the number of snapshots that were opened."""
    with closing(Loaded(server, folder, pumps, clock, **SMALL)) as loaded, suppress(KeyboardInterrupt):
        loaded.load()
        return len(loaded.progress)
    return 0


def check(server: MariaDb, folder: Path, pumps: DyingPumps, clock: CountingClock, statement: str) -> None:
    """Check that the loaded rows are those that the source had at the position from which its log is read."""
    with closing(Loaded(server, folder, pumps, clock, **SMALL)) as loaded:
        position = loaded.journal.read_positions()["s1"].position
        with connect(loaded.source) as link:
            end = read_log_end(link)
        left = []
        source_log = open_log(loaded.source, SERVER_ID, position)
        while source_log.position.gtids != end.gtids:
            left += [
                transaction.statement.text
                for transaction in source_log.read(wait_s=30.0)
                if transaction.statement is not None
            ]
        source_log.end()
        keys: dict[str, set[int]] = {}
        for binlog in (row for row in committed(pumps) if row.prewrite_value):
            payload = encode_commit_binlog(1, 2, b"k", binlog.prewrite_value)
            for change in decode_transaction(payload, 2, 1, loaded.catalog.state):
                table = loaded.catalog.state.find_table(change.table_id)
                assert (change.op, table is None) == ("insert", False)
                keys.setdefault(table.name if table else "", set()).add(int((change.after or {})["v"] or 0))
    expected = {"a": 1, "b": 2, "p": 3} if statement in left else MOVED[statement]
    assert keys == {"_first": {0}, **{name: {n} for name, n in expected.items()}}


def at_call(pumps: DyingPumps, call: int, server: MariaDb, statement: str) -> None:
    pumps.before = lambda now: execute(server, statement) if now == call else None


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("statement", MOVED, ids=["rename", "exchange"])
def test_a_name_moved_before_its_rows_are_read_is_loaded_correctly(
    either: MariaDb, tmp_path: Path, statement: str
) -> None:
    # R-34 S4-24
    pumps, clock = DyingPumps(), CountingClock()
    at_call(pumps, 7, either, statement)  # after the definitions, while the first table is read
    assert load(either, tmp_path, pumps, clock) > 1
    check(either, tmp_path, pumps, clock, statement)


def test_a_name_moved_before_a_kill_in_the_last_step_is_loaded_correctly(
    either: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumps, clock = DyingPumps(), CountingClock()
    at_call(pumps, 7, either, SWAP)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotLoader, "_order_batches", killed)
        assert load(either, tmp_path, pumps, clock) == 0
    assert load(either, tmp_path, pumps, clock) > 1
    check(either, tmp_path, pumps, clock, SWAP)


@pytest.mark.soak_on("mariadb")
@pytest.mark.parametrize("statement", MOVED, ids=["rename", "exchange"])
def test_a_name_moved_between_two_snapshots_is_loaded_correctly(
    either: MariaDb, tmp_path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pumps, clock, flush = DyingPumps(), CountingClock(), ChunkWriter.flush

    def flush_until_a_is_read(writer: ChunkWriter) -> None:
        flush(writer)
        load = writer._load
        if load.tables[DB, "a"].ranges.is_complete and not load.is_read:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ChunkWriter, "flush", flush_until_a_is_read)
        assert load(either, tmp_path, pumps, clock) == 0
    execute(either, statement)
    assert load(either, tmp_path, pumps, clock) > 1
    check(either, tmp_path, pumps, clock, statement)


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_table_that_was_read_before_its_name_moved_is_not_read_again(mysql: MySql, tmp_path: Path) -> None:
    """On MariaDB the statement would wait until the load has ended."""
    columns = "(id INT PRIMARY KEY)"
    numbers = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < 150) SELECT id FROM n"
    tables = {f"{DB}.a": numbers, f"{DB}.b": f"{numbers} LIMIT 140"}
    execute(mysql, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    execute(mysql, *(f"CREATE TABLE {name} {columns} AS {rows}" for name, rows in tables.items()))
    execute(mysql, f"ANALYZE TABLE {', '.join(tables)}")
    pumps, moved = DyingPumps(), list[int]()
    with closing(Loaded(mysql, tmp_path, pumps, CountingClock(), **SMALL)) as loaded:

        def move(_call: int) -> None:
            read = [name for name, table in loaded.progress[0].tables.items() if table.done] if loaded.progress else []
            if read and not moved:
                moved.append(len(read))
                execute(mysql, "SET lock_wait_timeout = 5", f"RENAME TABLE {DB}.{read[0][1]} TO {DB}.z")

        pumps.before = move
        loaded.load()
        assert (moved, len(loaded.progress)) == ([1], 1)
    assert rows_of(committed(pumps)) == 290
    execute(mysql, f"DROP DATABASE {DB}")


@pytest.mark.parametrize("is_same", [True, False], ids=["reset", "behind"])
def test_a_server_that_lacks_transactions_already_read_is_refused(
    either: MariaDb, tmp_path: Path, is_same: bool
) -> None:
    """The transactions that it logs from there would come twice, so the feeder waits for it. If it is the same server,
    its log must have been reset."""
    pumps, clock = DyingPumps(), CountingClock()
    pumps.before = lambda now: _interrupt() if now == 12 else None
    assert load(either, tmp_path, pumps, clock) == 0
    pumps.before = lambda _: None
    with closing(Loaded(either, tmp_path, pumps, clock, **SMALL)) as loaded:
        load_state = LoadState(loaded.journal, "s1")
        (snapshot,) = load_state.snapshots
        flavor = Flavor.MYSQL if isinstance(either, MySql) else Flavor.MARIADB
        load_state.snapshots.clear()
        ahead = replace(snapshot.position, gtids=_ahead(flavor, snapshot.position.gtids, is_same=is_same))
        loaded.journal.set_facts(
            load_state.start_snapshot(
                SnapshotPosition(ahead, snapshot.server if is_same else "other"), load_state.from_ts
            )
        )
        if not is_same:
            with pytest.raises(SourceUnavailable, match="lacks transactions"):
                loaded.load()
            assert LoadState(loaded.journal, "s1").tables[DB, "_first"].chunks
            return
        loaded.load()
        assert len(loaded.progress) == 1
        assert rows_left(committed(pumps), loaded.catalog) == 156


def _ahead(flavor: Flavor, gtids: str, *, is_same: bool) -> str:
    """The GTID set with five more transactions, of the same server or of another one."""
    if flavor is Flavor.MYSQL:
        more = f"{gtids.partition(':')[0] if is_same else OTHER}:1-1000000"
        done = MySqlGtidSet.parse(f"{gtids},{more}")
        return done.format_text()
    domains = dict(MariaDbGtidSet.parse(gtids).last)  # other tests of the server may have used other domains
    server, number = domains[0]
    domains[0] = server if is_same else 99, number + 5
    return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in domains.items())


CASCADE = "REFERENCES z (id) ON DELETE CASCADE ON UPDATE CASCADE"


@pytest.mark.parametrize(
    ("statement", "attempts"),
    [
        (f"DELETE FROM {DB}.z WHERE id = 2", 2),
        (f"UPDATE {DB}.z SET id = 5 WHERE id = 2", 2),
        (f"UPDATE {DB}.z SET v = 5", 1),
    ],
)
def test_rows_that_depend_on_a_table_not_read_yet_are_read_again(
    mariadb_source: MariaDb, tmp_path: Path, statement: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The foreign key changes them without logging, between two snapshots."""
    server = mariadb_source
    execute(
        server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}", f"USE {DB}",
        "CREATE TABLE z (id INT PRIMARY KEY, v INT)", "INSERT INTO z VALUES (1, 1), (2, 2)",
        f"CREATE TABLE a (id INT PRIMARY KEY, z INT, FOREIGN KEY (z) {CASCADE})",
        "INSERT INTO a VALUES (1, 1), (2, 2), (3, 2)", "CREATE TABLE _first (id INT PRIMARY KEY)",
        "INSERT INTO _first SELECT seq FROM seq_1_to_150", "ANALYZE TABLE _first, a, z",
    )  # fmt: skip
    pumps, clock, flush = DyingPumps(), CountingClock(), ChunkWriter.flush

    def flush_until_a_is_read(writer: ChunkWriter) -> None:
        flush(writer)
        load = writer._load
        if load.tables[DB, "a"].ranges.is_complete and not load.is_read:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ChunkWriter, "flush", flush_until_a_is_read)
        assert load(server, tmp_path, pumps, clock) == 0
    execute(server, statement)
    assert load(server, tmp_path, pumps, clock) == attempts
    expected = 150 + sum(rows(server, f"SELECT COUNT(*) FROM {DB}.{name}")[0][0] for name in "az")
    with closing(Loaded(server, tmp_path, pumps, clock)) as loaded:
        assert rows_left(committed(pumps), loaded.catalog) == expected
    execute(server, f"DROP DATABASE {DB}")
