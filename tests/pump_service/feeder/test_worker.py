"""A worker over a log in memory: batches, statements alone, faults that it waits for, and faults that stop it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from feeder_helpers import CountingClock, MemoryPumps, position
from support import alert_rules

from binlake.errors import ConfigError, SchemaError, SharedFailure, SourceUnavailable
from binlake.mysqlbinlog.charsets import REPLACED
from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.events.changes import SpooledChanges
from binlake.mysqlbinlog.model import LoggedSession, LoggedStatement, RowKind, RowsEvent, SourceTransaction, TableMap
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.parts import Parts
from binlake.pump_service.feeder.publisher import SourcePublisher, read_key
from binlake.pump_service.feeder.service import Feeder
from binlake.pump_service.feeder.settings import FeederFile, SourceFile
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.status import render_metrics_page
from binlake.pump_service.feeder.worker import Worker
from binlake.rows.schema import Action, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_database_json, build_job_json, build_table_json
from binlake.testkit.workload.spec import Col, build_column_json
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

SOURCE = "shard-1"
TABLE_ID = 105


class MemoryLog:
    """The transactions that tests put into it, batch by batch."""

    def __init__(self) -> None:
        self.batches: queue.Queue[list[SourceTransaction] | Exception] = queue.Queue()
        self.trouble = ""
        self.heard = 0.0
        self.server = ("db1", 3306)
        self.connections = 1
        self.logs_cascades = True
        self.position, self.received_position = position(0), ("", 0)
        self.ended = threading.Event()
        self._closed = threading.Event()

    def read(self, *_: float) -> list[SourceTransaction]:
        while not self._closed.is_set():
            try:
                item = self.batches.get(timeout=0.01)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            return item
        return []

    def close(self) -> None:
        self._closed.set()

    def end(self) -> None:
        self.ended.set()


def table() -> TableDef:
    columns = [build_column_json(Col("id", t.LONG), 1, 0, primary=True)]
    info = build_table_json(TABLE_ID, "t", columns, [], pk_is_handle=True)
    return TableDef.from_json(info, DbInfo.from_json(build_database_json(104, "app")))


class MemoryCatalog:
    """One table; each statement is one change, except those that start with `--`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 7
        self.failures: list[Exception] = []
        self.followed: list[str] = []
        self.unlogged = False

    def build_cascade_guard(self, _: str) -> Guard | None:
        def refuse(*_: object) -> None:
            raise SchemaError("a foreign key may have changed rows")

        return refuse if self.unlogged else None

    def find_definition(self, _: str, event: TableMap) -> TableDef | None:
        return table() if event.table == "t" else None

    def follow_all(self, source: str, statements: Iterable[LoggedStatement]) -> list[DefinitionChange]:
        if self.failures:
            raise self.failures.pop(0)
        return [change for statement in statements for change in self.follow(source, statement)]

    def follow(self, source: str, statement: LoggedStatement) -> list[DefinitionChange]:
        self.followed.append(statement.text)
        if statement.text.startswith("--"):
            return []
        self.version += 1
        body = build_job_json(
            1000 + self.version, Action.CREATE_TABLE, statement.text, schema=(104, "app"), table=(TABLE_ID, "t"),
            version=self.version, start_ts=0, finished_ts=0,
        )  # fmt: skip
        return [DefinitionChange(source, statement.text, {**body, "feeder": {"source": source}})]


class World:
    def __init__(self, folder: Path, **settings: object) -> None:
        self.journal = FeederJournal(folder)
        self.pumps = MemoryPumps()
        self.stopped = threading.Event()
        self.publisher = SourcePublisher(self.journal, self.pumps, CountingClock(), self.stopped)
        self.catalog = MemoryCatalog()
        self.log = MemoryLog()
        self.ended: queue.Queue[BaseException | None] = queue.Queue()
        parts = Parts(self.journal, self.publisher, self.catalog, self.stopped, self.catalog.version)
        instead = [{"id": "0-1-91", "statements": ["ALTER TABLE t ADD a INT", "-- none"]}, {"id": "0-1-92"}]
        source = SourceFile.model_validate({"name": SOURCE, "replace": instead, **settings})
        self.worker = Worker(source, parts, lambda: self.log, self.ended.put)
        self.worker.start()

    def feed(self, *transactions: SourceTransaction) -> None:
        self.log.batches.put(list(transactions))

    def stop(self) -> None:
        self.stopped.set()
        self.worker.wake()
        self.worker.join()

    def settle(self, offset: int) -> None:
        """Wait until everything up to `offset` is published; the position is there before the commits are sent."""
        for _ in range(6000):
            read_position = self.journal.read_positions().get(SOURCE)
            is_reached = read_position is not None and read_position.position.offset == offset
            if is_reached and not self.worker.is_publishing:
                return
            assert self.worker.state != "failed", self.worker.failure
            threading.Event().wait(0.01)
        raise AssertionError(f"the position stays at {self.journal.read_positions()}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop()
    made.journal.close()


def rows(number: int, ids: Sequence[int] = (1,), name: str = "t") -> SourceTransaction:
    event = TableMap(9, "app", name, bytes([t.LONG]), (0,), (False,))
    image = b"".join(b"\0" + number.to_bytes(4, "little") for number in ids)
    changes = (RowsEvent(RowKind.INSERT, event, b"", b"\1", image),)
    return SourceTransaction(f"0-1-{number}", 1000 + number, position(number), changes, size=100)


def statement(number: int, text: str) -> SourceTransaction:
    return SourceTransaction(
        f"0-1-{number}",
        1000 + number,
        position(number),
        statement=LoggedStatement("app", text, LoggedSession()),
        size=50,
    )


def ids_of(binlogs: Sequence[pb.Binlog]) -> list[str]:
    return [(read_key(binlog.prewrite_key) or (0, ""))[1].split("|")[1] for binlog in binlogs]


def test_rows_are_published_in_batches_and_statements_alone_in_the_sources_order(world: World) -> None:
    world.feed(rows(1), rows(2, (5, 6)), statement(3, "CREATE TABLE u (a INT)"), rows(4), rows(5))
    world.settle(5)
    commits = sorted(world.pumps.of_type(pb.Commit), key=lambda commit: commit.commit_ts)
    assert ids_of(commits) == [f"0-1-{n}" for n in range(1, 6)]
    values = [pb.PrewriteValue.FromString(prewrite.prewrite_value) for prewrite in world.pumps.of_type(pb.Prewrite)]
    # the version of the last DDL that is published: the rows of table ids come with it
    assert [value.schema_version for value in values] == [7, 7, 0, 8, 8]
    assert [len(value.mutations[0].inserted_rows) for value in values if value.mutations] == [1, 2, 1, 1]
    assert [job["query"] for job in world.journal.read_jobs()] == ["CREATE TABLE u (a INT)"]
    counts = world.worker.counts
    assert (counts.transactions, counts.ddls, counts.left_out, counts.log_bytes) == (4, 1, 0, 450)


def test_a_large_transaction_is_published_alone_and_in_pieces(world: World, tmp_path: Path) -> None:
    # U-06
    spooled = SpooledChanges(tmp_path)
    for event in (*rows(2, range(9)).changes, *rows(2, name="other").changes, *rows(2, (9,)).changes):
        spooled.add(event)
    world.feed(rows(1), SourceTransaction("0-1-2", 1002, position(2), spooled, size=100), rows(3))
    world.settle(3)
    first, large, last = world.pumps.of_type(pb.Prewrite)
    expected = encode_transactions([list(spooled)], partial(world.catalog.find_definition, ""), 7)[0]
    assert large.prewrite_value == expected
    assert build.emit_always(large) is False  # what Go always writes is there
    assert ids_of([first, large, last]) == ["0-1-1", "0-1-2", "0-1-3"]
    counts = world.worker.counts
    assert (counts.transactions, counts.rows, counts.batches, counts.log_bytes) == (3, 12, 3, 300)


def test_a_large_transaction_of_tables_that_are_left_out_moves_the_position(world: World, tmp_path: Path) -> None:
    spooled = SpooledChanges(tmp_path)
    spooled.add(next(iter(rows(1, name="other").changes)))
    world.feed(SourceTransaction("0-1-1", 1001, position(1), spooled, size=100))
    world.settle(1)
    assert world.pumps.got == []
    assert world.worker.counts.left_out == 1


def test_a_transaction_outside_the_lists_only_moves_the_position(world: World) -> None:
    world.feed(rows(1), rows(2, name="other"))
    world.feed(rows(3, name="other"), statement(4, "-- GRANT"))
    world.settle(4)
    assert ids_of(world.pumps.of_type(pb.Commit)) == ["0-1-1"]
    assert world.journal.read_positions()[SOURCE].last_id == "0-1-1"
    assert world.worker.counts.left_out == 3


@pytest.mark.long
def test_the_worker_waits_for_an_unreachable_tracker(world: World) -> None:
    world.catalog.failures = [SourceUnavailable("the tracker cannot be reached")]
    world.feed(statement(1, "CREATE TABLE u (a INT)"))
    world.settle(1)
    assert world.catalog.followed == ["CREATE TABLE u (a INT)"]
    while world.worker.trouble:  # this ends a moment after the publishing
        threading.Event().wait(0.01)


@pytest.mark.long
def test_other_sources_can_use_the_catalog_while_one_waits_for_its_tracker(world: World) -> None:
    world.catalog.failures = [SourceUnavailable("the tracker cannot be reached")] * (1 << 20)
    world.feed(statement(1, "CREATE TABLE u (a INT)"))
    while not world.worker.trouble:
        threading.Event().wait(0.01)
    assert world.catalog.lock.acquire(timeout=60)
    world.catalog.failures = []
    world.catalog.lock.release()
    world.settle(1)


def test_an_unsupported_statement_stops_the_source_and_is_reported(world: World) -> None:
    world.catalog.failures = [SchemaError("the tracker refuses a statement of the source")]
    world.feed(rows(1), statement(2, "CREATE TABLE x"), rows(3))
    assert isinstance(world.ended.get(timeout=60), SchemaError)
    assert world.worker.state == "failed"
    assert "refuses a statement" in world.worker.trouble
    assert world.log.ended.is_set()
    assert ids_of(world.pumps.of_type(pb.Commit)) == ["0-1-1"]


def test_rows_that_a_foreign_key_may_have_changed_stop_the_source(world: World) -> None:
    world.catalog.unlogged, world.log.logs_cascades = True, False
    world.feed(rows(1))
    assert "foreign key" in str(world.ended.get(timeout=60))
    assert world.pumps.got == []


@pytest.mark.parametrize(("logged", "settings"), [(True, {}), (False, {"unlogged-cascades": "none"})])
def test_foreign_keys_do_not_stop_a_source_that_logs_or_never_cascades(
    tmp_path: Path, logged: bool, settings: dict[str, object]
) -> None:
    world = World(tmp_path, **settings)
    world.catalog.unlogged, world.log.logs_cascades = True, logged
    world.feed(rows(1))
    world.settle(1)
    world.stop()
    world.journal.close()


def test_an_error_of_the_log_stops_the_worker_after_the_transactions_already_read(world: World) -> None:
    world.feed(rows(1))
    world.log.batches.put(SchemaError("purged"))
    assert str(world.ended.get(timeout=60)) == "purged"
    assert ids_of(world.pumps.of_type(pb.Commit)) == ["0-1-1"]


def test_the_worker_stops_when_asked_even_while_it_waits(world: World) -> None:
    world.pumps.failures = 1 << 30
    world.feed(rows(1))
    while not world.worker.trouble:
        threading.Event().wait(0.01)
    world.stop()
    assert world.ended.get(timeout=60) is None
    assert not world.journal.read_positions()


def test_metrics_page_shows_the_workers_counts(world: World) -> None:
    world.feed(rows(1), rows(2, (5, 6)))
    world.settle(2)
    while not world.worker.counts.last_ms:
        threading.Event().wait(0.01)
    REPLACED.add("d.of_this_test", "v")
    load = SnapshotProgress.of({("d", "t"): 900}, [("d", "t")])
    load.add_rows(("d", "t"), 300, 4096)
    text, _ = render_metrics_page([world.worker], world.publisher, {"shard-1": load})
    assert 'binlake_feeder_load_rows{source="shard-1"} 300' in text
    assert 'binlake_feeder_load_bytes{source="shard-1"} 4096' in text
    assert 'binlake_feeder_load_tables_done{source="shard-1"} 0' in text
    assert 'binlake_feeder_load_seconds_left{source="shard-1"}' in text
    load.state = "paused"
    paused = render_metrics_page([world.worker], world.publisher, {"shard-1": load})[0]
    assert 'binlake_feeder_load_seconds_left{source="shard-1"}' not in paused
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    shown: dict[str, Any] = {name.partition("{")[0]: value for name, value in lines.items()}
    assert shown["binlake_feeder_transactions_total"] == "2"
    assert shown["binlake_feeder_up"] == "1"
    assert shown["binlake_feeder_rows_total"] == "3"
    assert shown["binlake_feeder_batches_total"] == "1"
    assert shown["binlake_feeder_last_transaction_seconds"] == "1.002"
    # nobody informed the publisher that the commits are stored
    assert lines['binlake_feeder_unsent_batches{source="shard-1"}'] == "1"
    assert lines['binlake_feeder_retries_total{source="shard-1"}'] == "0"
    assert shown["binlake_feeder_retries_total"] == "0"
    assert lines['binlake_feeder_replaced_texts_total{table="d.of_this_test"}'] == "1"
    assert 'source="shard-1"' in text
    series = [(name.partition("{")[0], frozenset[str]()) for name in lines]
    assert alert_rules.find_missing_series("binlake-feeders", series) == {}
    assert alert_rules.find_missing_on_board("feeder", series) == {}
    assert len(alert_rules.rules("binlake-feeders")) == 4
    world.log.trouble = "refused"
    assert 'binlake_feeder_up{source="shard-1"} 0' in render_metrics_page([world.worker], world.publisher, {})[0]


def test_a_statement_is_replaced_or_skipped_as_configured(world: World) -> None:
    world.feed(statement(90, "CREATE TABLE a"), statement(91, "ODD THING"), statement(92, "ANOTHER"))
    world.settle(position(92).offset)
    assert world.catalog.followed == ["CREATE TABLE a", "ALTER TABLE t ADD a INT", "-- none"]


def test_an_unsupported_change_names_its_transaction(world: World) -> None:
    world.catalog.failures.append(SchemaError("the log has an unknown statement"))
    world.feed(statement(7, "ODD THING"))
    failure = world.ended.get(timeout=60)
    assert isinstance(failure, SchemaError)
    assert failure.where["transaction"] == "0-1-7"


def test_a_failing_journal_ends_the_feeder_not_one_source(world: World) -> None:
    world.journal._db.execute("PRAGMA query_only = ON")
    world.feed(rows(1))
    assert isinstance(world.ended.get(timeout=30), SharedFailure)
    world.journal._db.execute("PRAGMA query_only = OFF")


def test_a_change_of_the_catalog_that_no_pump_accepts_ends_the_feeder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> list[str]:
        raise ConfigError("the pump refused", hint="look there")

    monkeypatch.setattr(world.pumps, "write_prewrites", refuse)
    world.feed(statement(1, "CREATE TABLE t (id INT)"))
    ended = world.ended.get(timeout=30)
    assert isinstance(ended, SharedFailure)
    assert ended.hint == "look there"


def test_a_shared_error_ends_the_feeder_and_an_error_of_one_source_does_not(tmp_path: Path) -> None:
    sources = [{"name": name, "host": "h", "start": {"mode": "now"}} for name in ("one", "two", "three")]
    values = {"data-dir": str(tmp_path), "tracker": {"host": "h"}, "source": sources}
    feeder = Feeder(FeederFile.model_validate(values))
    feeder._on_end(SchemaError("of one table"))
    assert not feeder._stopped.is_set()
    feeder._on_end(SharedFailure("the journal fails"))
    assert feeder._stopped.is_set()
    assert isinstance(feeder._failure, SharedFailure)
