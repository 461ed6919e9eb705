"""An interrupted load continues: chunks already read stay, each visible position is part of one state of the source.

Random: tables of each kind of key, changes of their rows between and during snapshots (new keys, unique keys
swapped, rows that move across the bounds of chunks, deletes and inserts again), DDL, and where the feeder is killed or
its connections are cut. What it published is then applied strictly, row by row.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, SERVER_ID, DyingPumps, Loaded, committed, filled, rows_of
from pymysql import err
from support.feedload import purge
from support.mariadb import MariaDb, MySql, execute
from support.snapshots import images, opened, reader_of

from binlake.errors import SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.rows.codec import commit_binlog, decode_transaction
from binlake.wire import binlog_pb2 as pb
from pump_service.feeder.command import show_status
from pump_service.feeder.connection import open_log
from pump_service.feeder.journal import Journal
from pump_service.feeder.publisher import Outgoing
from pump_service.feeder.server import connect, read_log_end
from pump_service.feeder.settings import FeederFile
from pump_service.feeder.snapshot.loadstate import LoadState, read_load_record

pytestmark = pytest.mark.mariadb

TABLES = {
    "number": ("id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: str(n * 3 - 60)),
    "big": ("id BIGINT UNSIGNED PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: str((1 << 63) - 50 + n)),
    "word": (
        "id VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)",
        lambda n: f"'{'äBcÖ'[n % 4]}{n * 7 % 100}'",
    ),
    "latin": (
        "id CHAR(9) CHARACTER SET latin1 COLLATE latin1_german1_ci PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)",
        lambda n: f"'{'éAzß'[n % 4]}''{n}'",
    ),
    "bytes": ("id BINARY(4) PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: f"X'{n * 997 % 250:02X}{n:02X}0000'"),
    "moment": (
        "id TIMESTAMP(2) NOT NULL DEFAULT '2020-01-01', u INT UNIQUE, v VARCHAR(20), PRIMARY KEY (id, u)",
        lambda n: f"'2024-03-31 00:00:00' + INTERVAL {n * 3571} SECOND",
    ),
    "clock": ("id TIME(1) PRIMARY KEY, u INT UNIQUE, v VARCHAR(20)", lambda n: f"SEC_TO_TIME({(n - 30) * 9000})"),
    "keyless": ("id INT, u INT UNIQUE, v VARCHAR(20)", str),
}
"""Columns, and the literal of the key of row `n`."""
_KEYS = 60
REQUEST = "pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES"


@pytest.fixture(params=["mariadb_source", "mysql"])
def either(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    server: MariaDb = request.getfixturevalue(request.param)
    execute(server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield server
    execute(server, f"DROP DATABASE IF EXISTS {DB}")


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REQUEST, 100)


@dataclass
class Writer:
    """Changes the source at random."""

    server: MariaDb
    draw: random.Random
    made: list[str] = field(default_factory=list)

    def create(self) -> None:
        for name, (columns, key) in TABLES.items():
            numbers = [n for n in range(_KEYS) if self.draw.random() < 0.6]
            values = ", ".join(f"({key(n)}, {n}, 'first')" for n in numbers)
            execute(self.server, f"CREATE TABLE {DB}.{name} ({columns})", f"INSERT INTO {DB}.{name} VALUES {values}")

    def change(self, times: int) -> None:
        """Transactions of a few changes each; one that the server refuses is rolled back."""
        with self.server.connect() as link, link.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            for _ in range(times):
                cursor.execute("BEGIN")
                try:
                    for _ in range(self.draw.randint(1, 4)):
                        for statement in self._statements(self.draw.choice(list(TABLES))):
                            cursor.execute(statement)
                except Exception:  # noqa: BLE001 - a duplicate key: the whole transaction is drawn in vain
                    cursor.execute("ROLLBACK")
                else:
                    cursor.execute("COMMIT")

    def _statements(self, table: str) -> list[str]:
        first, other = (self.draw.randrange(_KEYS) for _ in range(2))
        key = TABLES[table][1]
        at = f"{DB}.{table}"
        where = f"u = {first}"
        return self.draw.choice(
            [
                [f"INSERT INTO {at} VALUES ({key(first)}, {first}, 'new')"],
                [f"DELETE FROM {at} WHERE {where}"],
                [f"UPDATE {at} SET v = CONCAT(LEFT(v, 9), '{other}') WHERE {where}"],
                # The key moves, mostly across the bound of a chunk; the unique key goes to another row.
                [f"UPDATE {at} SET id = {key(other)} WHERE {where}"],
                [
                    f"UPDATE {at} SET u = -1 WHERE u = {first}",
                    f"UPDATE {at} SET u = {first} WHERE u = {other}",
                    f"UPDATE {at} SET u = {other} WHERE u = -1",
                ],
                [f"DELETE FROM {at} WHERE {where}", f"INSERT INTO {at} VALUES ({key(first)}, {first}, 'again')"],
            ]
        )

    def alter(self) -> None:
        """DDL that changes a definition, the rows of a table, or neither."""
        table = self.draw.choice(list(TABLES))
        kind = self.draw.choice(["alter", "truncate", "again", "other", "none", "none"])
        at = f"{DB}.{table}"
        made = len(self.made)
        other = f"{DB}.other{made}"
        statements = {
            "alter": [f"ALTER TABLE {at} MODIFY v VARCHAR({21 + made})"],
            "truncate": [f"TRUNCATE TABLE {at}"],
            "again": [f"CREATE TABLE {DB}.copied LIKE {at}", f"DROP TABLE {at}", f"RENAME TABLE {DB}.copied TO {at}"],
            "other": [f"CREATE TABLE {other} (id INT PRIMARY KEY)", f"INSERT INTO {other} VALUES (1)"],
            "none": [],
        }[kind]
        self.made.append(f"{kind} {table}")
        execute(self.server, *statements)


@dataclass
class Replica:
    """Applies strictly: an inserted row must be absent, a changed or deleted one present as it was."""

    loaded: Loaded
    tables: dict[str, Counter[str]] = field(default_factory=dict)

    def apply(self, binlog: pb.Binlog) -> None:
        payload = commit_binlog(1, 2, b"k", binlog.prewrite_value)
        state = self.loaded.catalog.state
        for change in decode_transaction(payload, 2, 1, state):
            table = state.table(change.table_id)
            assert table is not None
            counts = self.tables.setdefault(table.name, Counter())
            if change.before is not None:
                before = json.dumps(change.before, sort_keys=True)
                assert counts[before], f"{table.name} has no {before}"
                counts[before] -= 1
            if change.after is not None:
                counts[json.dumps(change.after, sort_keys=True)] += 1
        self._check_keys()

    def _check_keys(self) -> None:
        for name, counts in self.tables.items():
            present = [json.loads(text) for text in counts.elements()]
            for column in ("u",) if name in ("keyless", "moment") else ("u", "id"):
                values = Counter(row.get(column) for row in present if row.get(column) is not None)
                twice = [value for value, count in values.items() if count > 1]
                assert not twice, f"{name}.{column} has {twice} twice"

    def rows(self, name: str) -> Counter[str]:
        return +self.tables.get(name, Counter())


def source_rows(server: MariaDb, loaded: Loaded, name: str) -> Counter[str]:
    table = loaded.catalog.table("s1", DB, name)
    assert table is not None
    with opened(server, 1, [(DB, name)]) as snapshot:
        reader, _ = reader_of(server, snapshot, table)
        return Counter(json.dumps(row, sort_keys=True) for row in images(reader, table))


def publish_log(loaded: Loaded) -> None:
    """Publish the log from the load's position to its end, as a worker does; it has rows only."""
    position = loaded.journal.read_positions()["s1"].position
    with connect(loaded.source) as link:
        end = read_log_end(link)
    source_log = open_log(loaded.source, SERVER_ID, position)
    while source_log.position.gtids != end.gtids:
        batch = source_log.read(100, 1 << 20, 30.0)
        assert all(transaction.statement is None for transaction in batch)
        definition_of = partial(loaded.catalog.definition_of, "s1")
        values = encode_transactions(
            [transaction.changes for transaction in batch], definition_of, loaded.catalog.version
        )
        outgoing = [
            Outgoing(transaction.id, transaction.time_ms, value)
            for transaction, value in zip(batch, values, strict=True)
            if value
        ]
        if outgoing:
            loaded.publisher.publish("s1", outgoing, batch[-1].end)
    source_log.end()


class Faults:
    """Changes the source at the calls of the pumps; at some of them it kills the feeder or its connections."""

    def __init__(self, writer: Writer, draw: random.Random, times: int) -> None:
        self.writer, self.draw, self.left = writer, draw, times
        self.next = draw.randint(3, 12)

    def __call__(self, call: int) -> None:
        self.writer.change(self.draw.randint(0, 2))
        if call < self.next or not self.left:
            return
        self.left -= 1
        self.next = call + self.draw.randint(2, 14)
        self.writer.change(self.draw.randint(0, 30))
        if self.draw.random() < 0.6:
            raise KeyboardInterrupt
        with self.writer.server.connect() as link, link.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
            )
            for (session,) in cursor.fetchall():
                with suppress(err.Error):
                    cursor.execute(f"KILL {session}")


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_several_snapshots_are_part_of_the_source_at_each_position(
    either: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # S4-02, S4-24, R-34
    monkeypatch.setattr(REQUEST, (100, 600)[seed % 2])
    run_random_load(either, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_loads(either: MariaDb, tmp_path: Path, seed: int) -> None:
    run_random_load(either, tmp_path, seed)


def run_random_load(server: MariaDb, folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    writer, pumps, clock = Writer(server, draw), DyingPumps(), CountingClock()
    writer.create()
    pumps.before = Faults(writer, draw, 3)
    attempts, stored_rows = 0, 0
    while True:
        attempts += 1
        with closing(Loaded(server, folder, pumps, clock, **{"chunk-rows": 7, "threads": 2})) as loaded:
            with suppress(KeyboardInterrupt, SourceUnavailable):
                loaded.load()
                break
            stored_rows = max(stored_rows, read_load_record(loaded.journal, "s1")["rows"])
            assert count_undecided(loaded.journal, pumps) >= len(list(loaded.journal.load_batches("s1")))
            is_read = LoadState(loaded.journal, "s1").is_read
        if not is_read:  # otherwise the log is read from before it
            writer.alter()
        writer.change(draw.randint(0, 10))
    pumps.before = lambda _: None
    with closing(Loaded(server, folder, pumps, clock)) as loaded:
        assert not loaded.journal.load_tables("s1")
        writer.change(20)
        publish_log(loaded)
        replica = Replica(loaded)
        for binlog in committed(pumps):
            replica.apply(binlog)
        for name in TABLES:
            assert replica.rows(name) == source_rows(server, loaded, name), name
        assert count_undecided(loaded.journal, pumps) == 0
    ids = Counter(binlog.prewrite_key.split(b"|", 2)[2] for binlog in committed(pumps))
    assert max(ids.values()) == 1


def count_undecided(journal: Journal, pumps: DyingPumps) -> int:
    return sum(journal.outcome(prewrite.start_ts) == -1 for prewrite in pumps.of_type(pb.Prewrite))


def interrupt_load(server: MariaDb, folder: Path, pumps: DyingPumps, clock: CountingClock) -> None:
    """A load of 100 rows in 10 chunks, killed in the middle."""
    filled(server)
    pumps.dies_at = 6
    with closing(Loaded(server, folder, pumps, clock, **SMALL)) as loaded, suppress(KeyboardInterrupt):
        loaded.load()
    assert pumps.calls == 6


SMALL = {"chunk-rows": 10, "threads": 1}


def test_chunks_are_not_read_twice_and_show_in_the_status_of_a_stopped_feeder(
    either: MariaDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # S4-24
    pumps, clock = DyingPumps(), CountingClock()
    interrupt_load(either, tmp_path / "feeder", pumps, clock)
    settings = FeederFile.model_validate(
        {
            "data-dir": str(tmp_path / "feeder"),
            "status-addr": "127.0.0.1:1",
            "tracker": {"host": either.host, "port": either.port},
            "source": [{"name": "s1", "host": either.host, "port": either.port}],
        }
    )
    show_status(settings, "text")
    assert "load: loading, 40 rows, 0 of 1 tables" in capsys.readouterr().out
    execute(either, f"UPDATE {DB}.t SET v = -v WHERE id IN (1, 99)", f"UPDATE {DB}.t SET id = 200 WHERE id = 2")
    with closing(Loaded(either, tmp_path / "feeder", pumps, clock, **SMALL)) as loaded:
        loaded.load()
        assert loaded.progress[0].to_json()["by_table"][f"{DB}.t"]["chunks"] == 11
        assert [progress.to_json()["state"] for progress in loaded.progress] == ["done"]
    done = [binlog for binlog in committed(pumps) if binlog.prewrite_value]
    # 40 rows of the first snapshot, a change and a row that left, 61 rows of the second.
    assert [len(changes_of(binlog)) for binlog in done] == [10] * 4 + [1, 1] + [10] * 6 + [1]
    assert [changes_of(binlog) for binlog in done[4:6]] == [["update"], ["delete"]]
    assert rows_of(pumps.of_type(pb.Prewrite)) == 101


def changes_of(binlog: pb.Binlog) -> list[str]:
    names = {pb.Insert: "insert", pb.Update: "update", pb.DeleteRow: "delete"}
    value = pb.PrewriteValue.FromString(binlog.prewrite_value)
    return [names[kind] for mutation in value.mutations for kind in mutation.sequence]


def test_a_load_whose_log_was_purged_starts_again(either: MariaDb, tmp_path: Path) -> None:
    pumps, clock = DyingPumps(), CountingClock()
    interrupt_load(either, tmp_path, pumps, clock)
    execute(either, f"DELETE FROM {DB}.t WHERE id < 31")
    purge(either)
    with closing(Loaded(either, tmp_path, pumps, clock, **SMALL)) as loaded:
        loaded.load()
        # A MySQL reports that the log was purged before anything is read.
        assert len(loaded.progress) == (1 if isinstance(either, MySql) else 2)
    done = [binlog for binlog in committed(pumps) if binlog.prewrite_value]
    assert rows_of(done) == 70
    assert {kind for binlog in done for kind in changes_of(binlog)} == {"insert"}


def test_without_gtids_positions_are_file_offsets(mysql: MySql, tmp_path: Path) -> None:
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    pumps, clock = DyingPumps(), CountingClock()
    try:
        execute(mysql, *(f"SET GLOBAL gtid_mode = {step}" for step in steps))
        interrupt_load(mysql, tmp_path, pumps, clock)
        execute(mysql, "FLUSH BINARY LOGS", f"DELETE FROM {DB}.t WHERE id < 6", "FLUSH BINARY LOGS")
        with closing(Loaded(mysql, tmp_path, pumps, clock, **SMALL)) as loaded:
            loaded.load()
            assert loaded.journal.read_positions()["s1"].position.gtids == ""
    finally:
        execute(mysql, *(f"SET GLOBAL gtid_mode = {step}" for step in [*reversed(steps[:-1]), "ON"]))
    done = [binlog for binlog in committed(pumps) if binlog.prewrite_value]
    kinds = Counter(kind for binlog in done for kind in changes_of(binlog))
    assert kinds == {"insert": 100, "delete": 5}
    execute(mysql, f"DROP DATABASE {DB}")


def test_a_refused_load_is_rolled_back_completely(either: MariaDb, tmp_path: Path) -> None:
    """What can never be committed must not block the pumps' watermark."""
    pumps, clock = DyingPumps(), CountingClock()
    interrupt_load(either, tmp_path, pumps, clock)
    execute(either, f"CREATE TABLE {DB}.other (id INT) ENGINE = MyISAM")
    with closing(Loaded(either, tmp_path, pumps, clock, **SMALL)) as loaded:
        with pytest.raises(SourceRefused, match=rf"{DB}\.other"):
            loaded.load()
        assert count_undecided(loaded.journal, pumps) == 0
