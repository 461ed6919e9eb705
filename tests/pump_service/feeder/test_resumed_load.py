"""An interrupted load continues: chunks already read stay, each visible position is part of one state of the source.

Random: tables of each kind of key, changes of their rows between and during snapshots (new keys, unique keys
swapped, rows that move across the bounds of chunks, deletes and inserts again), DDL, and where the feeder is killed or
its connections are cut. What it published is then applied strictly, row by row.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, count_inserts, filled, rows_left, rows_of
from pymysql import err
from randomload_helpers import Writer, check_published
from support.feedload import purge
from support.mariadb import MariaDb, MySql, execute

from binlake.errors import SourceRefused, SourceUnavailable
from binlake.pump_service.feeder.command import show_status
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.settings import FeederFile
from binlake.pump_service.feeder.snapshot.loadstate import LoadState, read_load_record
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.mariadb

REQUEST = "binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES"


@pytest.fixture(params=["mariadb_source", "mysql"])
def either(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    server: MariaDb = request.getfixturevalue(request.param)
    execute(server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield server
    execute(server, f"DROP DATABASE IF EXISTS {DB}")


@pytest.fixture(autouse=True)
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REQUEST, 100)


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


@pytest.fixture(params=["rows", "columns"])
def form(request: pytest.FixtureRequest) -> str:
    """The form of the values."""
    return str(request.param)


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("seed", range(2))
def test_rows_of_several_snapshots_are_part_of_the_source_at_each_position(
    either: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, seed: int
) -> None:
    # S4-02, S4-24, R-34
    monkeypatch.setattr(REQUEST, (100, 600)[seed % 2])
    run_random_load(either, tmp_path, form, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_loads(either: MariaDb, tmp_path: Path, form: str, seed: int) -> None:
    run_random_load(either, tmp_path, form, seed)


def run_random_load(server: MariaDb, folder: Path, form: str, seed: int) -> None:
    draw = random.Random(seed)
    writer, pumps, clock = Writer(server, draw), DyingPumps(), CountingClock()
    writer.create()
    pumps.before = Faults(writer, draw, 3)
    attempts, stored_rows = 0, 0
    while True:
        attempts += 1
        with closing(Loaded(server, folder, pumps, clock, **{"chunk-rows": 7, "threads": 2, "form": form})) as loaded:
            with suppress(KeyboardInterrupt, SourceUnavailable):
                loaded.load()
                break
            stored_rows = max(stored_rows, read_load_record(loaded.journal, "s1")["rows"])
            assert count_undecided(loaded.journal, pumps) >= len(list(loaded.journal.read_load_batches("s1")))
            is_read = LoadState(loaded.journal, "s1").is_read
        if not is_read:  # otherwise the log is read from before it
            writer.alter()
        writer.change(draw.randint(0, 10))
    pumps.before = lambda _: None
    with closing(Loaded(server, folder, pumps, clock)) as loaded:
        assert not loaded.journal.read_load_tables("s1")
        writer.change(20)
        check_published(server, loaded, pumps)
        assert count_undecided(loaded.journal, pumps) == 0


def count_undecided(journal: FeederJournal, pumps: DyingPumps) -> int:
    return sum(journal.find_outcome(prewrite.start_ts) == -1 for prewrite in pumps.of_type(pb.Prewrite))


def interrupt_load(server: MariaDb, folder: Path, pumps: DyingPumps, clock: CountingClock) -> None:
    """A load of 100 rows in 10 chunks, killed in the middle."""
    filled(server)
    pumps.dies_at = 6
    with closing(Loaded(server, folder, pumps, clock, **SMALL)) as loaded, suppress(KeyboardInterrupt):
        loaded.load()
    assert pumps.calls == 6
    assert rows_of(committed(pumps)) == 40  # windows carry what is read while the rest is read


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
    names = {pb.Update: "update", pb.DeleteRow: "delete"}
    mutations = pb.PrewriteValue.FromString(binlog.prewrite_value).mutations
    inserts = [name for mutation in mutations for name in ["insert"] * count_inserts(mutation)]
    return inserts + [names[kind] for mutation in mutations for kind in mutation.sequence if kind in names]


def test_a_load_whose_log_was_purged_starts_again(either: MariaDb, tmp_path: Path) -> None:
    pumps, clock = DyingPumps(), CountingClock()
    interrupt_load(either, tmp_path, pumps, clock)
    execute(either, f"DELETE FROM {DB}.t WHERE id < 31")
    purge(either)
    with closing(Loaded(either, tmp_path, pumps, clock, **SMALL)) as loaded:
        loaded.load()
        # A MySQL reports that the log was purged before anything is read.
        assert len(loaded.progress) == (1 if isinstance(either, MySql) else 2)
        # The 40 rows that were visible are dropped with their table.
        assert (rows_left(committed(pumps), loaded.catalog), rows_of(committed(pumps))) == (70, 110)
    done = [binlog for binlog in committed(pumps) if binlog.prewrite_value]
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
    """A load that can never be committed must not block the pumps' watermark."""
    pumps, clock = DyingPumps(), CountingClock()
    interrupt_load(either, tmp_path, pumps, clock)
    execute(either, f"CREATE TABLE {DB}.other (id INT) ENGINE = MyISAM")
    with closing(Loaded(either, tmp_path, pumps, clock, **SMALL)) as loaded:
        with pytest.raises(SourceRefused, match=rf"{DB}\.other"):
            loaded.load()
        assert count_undecided(loaded.journal, pumps) == 0
        execute(either, f"DROP TABLE {DB}.other")
        loaded.load()
        assert rows_left(committed(pumps), loaded.catalog) == 100
