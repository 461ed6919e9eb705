"""Exactly once despite any crash; and obstacles are reported before anything is written."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.children import start_child, wait_for_exit
from support.drainerfiles import (
    Story,
    Written,
    column_bytes,
    column_of,
    datum,
    event_bytes,
    field,
    record,
    transaction_bytes,
    write_files,
)
from support.examples import spread
from support.mariadb import MariaDb, execute, rows
from support.reparation import drop_files_before, run, settings_of, write_index
from support.windows import Crash, at, signal_me

from binlake.common.filestore import LocalStore
from binlake.errors import CheckpointConflict, Permanent, SchemaError, TargetRefused
from binlake.extras.reparo.restore import restore

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

TABLES = ("CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE app.log (line VARCHAR(40))")
END = [(2, "B", 5), (3, "c", 5), (4, "d", 5)]
LINES = ["one", "three", "two", "two"]


def story() -> Story:
    """Rows with and without a key, before and after a DDL that must not run twice."""
    found = Story().put((1, "", "a"), (2, "", "b")).log("one", "two", "two").put((3, "", "c"))
    found.ddl("ALTER TABLE `t` ADD COLUMN `w` INT DEFAULT 5")
    return found.put((1, "a", None), (2, "b", "B")).unlog("two").log("three", "two").put((4, "", "d"))


@pytest.fixture
def folder(empty_server: MariaDb, tmp_path: Path) -> Path:
    """The files of the story; the server has the base."""
    execute(
        empty_server,
        "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        *TABLES,
    )
    write_files(tmp_path, story().written, 100)
    return tmp_path


def assert_whole(server: MariaDb) -> None:
    assert rows(server, "SELECT id, v, w FROM app.t ORDER BY id") == END
    assert [line for (line,) in rows(server, "SELECT line FROM app.log ORDER BY line")] == LINES
    text = rows(server, "SELECT checkPoint FROM binlake_reparo.checkpoint")[0][0]
    assert text == f'{{"consistent":true,"commitTS":{story().ts},"ts-map":{{}}}}'


def run_in_child(server: MariaDb, folder: Path, hook: Callable[[str], None]) -> int:
    """Run in a child process, and return its exit code."""
    settings = settings_of(server, folder, window_rows=3)
    return wait_for_exit(start_child(partial(restore, hook=hook), settings, LocalStore(folder)))


STEPS = [
    *(("opened", number) for number in (1, 2, 3, 4)),
    *(("batch", number) for number in (1, 2, 4, 5)),
    *(("before_commit", number) for number in (1, 3, 5, 7)),
    *(("after_commit", number) for number in (1, 2, 6, 8)),
    *(("intent", 1), ("ddl_executed", 1), ("ddl_done", 1)),
    ("closed", 2),
]


@pytest.mark.parametrize(("step", "number"), spread(STEPS, least=8))
def test_killed_run_is_resumed_exactly_once(empty_server: MariaDb, folder: Path, step: str, number: int) -> None:
    # S0-01, R-17: kill -9 at 20 places; the keyless table is exact and the DDL runs once
    assert run_in_child(empty_server, folder, at(step, number, signal_me(signal.SIGKILL))) == -signal.SIGKILL
    run(empty_server, folder, window_rows=3)
    assert_whole(empty_server)
    assert run(empty_server, folder).state == "already"


def test_rows_with_the_commit_ts_of_a_ddl_follow_it(empty_server: MariaDb, folder: Path) -> None:
    # in Binlake's files a DDL is at the commit_ts from which rows have its definition; a crash at each fifth step
    own = folder / "own"
    own.mkdir()
    steps = itertools.count(2, 5)
    while True:
        execute(empty_server, "DROP TABLE app.t, app.log", "DROP DATABASE IF EXISTS binlake_reparo", *TABLES)
        found = Story().put((1, "", "a")).ddl("ALTER TABLE `t` ADD COLUMN `w` INT DEFAULT 5").together()
        found.ddl("DROP TABLE `t`").together().ddl("CREATE TABLE `t` (`id` BIGINT PRIMARY KEY, `v` TEXT)").together()
        write_files(own, found.put((2, "", "b"), (3, "", "c")).put((3, "c", None)).written, 100)
        try:
            run(empty_server, own, crash_at(next(steps)))
        except Crash:
            run(empty_server, own)
        else:
            break
        assert rows(empty_server, "SELECT * FROM app.t") == [(2, "b")]
        checkpoint = rows(empty_server, "SELECT checkPoint FROM binlake_reparo.checkpoint")[0][0]
        assert checkpoint == f'{{"consistent":true,"commitTS":{found.ts},"ts-map":{{}}}}'
    assert next(steps) > 20


def crash_at(number: int) -> Callable[[str], None]:
    passed = itertools.count(1)

    def hook(_step: str) -> None:
        if next(passed) == number:
            raise Crash

    return hook


def test_drop_of_two_tables_is_logged_once_per_table(empty_server: MariaDb, folder: Path) -> None:
    text = "DROP TABLE `log`, `t`"
    own = folder / "own"
    own.mkdir()
    write_files(own, Story().ddl(text).put((1, "", "a")).ddl(text).written)
    run(empty_server, own, stop_tso=1020)
    assert rows(empty_server, "SELECT * FROM app.t") == [(1, "a")]
    run(empty_server, own)
    assert rows(empty_server, "SHOW TABLES FROM app") == []


@pytest.mark.parametrize(("ignored", "left"), [("log", "log"), ("t", "t")])
def test_drop_of_two_tables_drops_only_the_replicated_one(
    empty_server: MariaDb, folder: Path, ignored: str, left: str
) -> None:
    own = folder / "own"
    own.mkdir()
    text = "DROP TABLE `log`, `T`"
    write_files(own, Story().ddl(text).ddl(text).written)
    done = run(empty_server, own, replicate_ignore_table=[{"db-name": "app", "tbl-name": ignored}])
    assert rows(empty_server, "SHOW TABLES FROM app") == [(left,)]
    assert [text.split(":")[1] for text in done.skipped] == [" what it drops does not exist"]


def test_open_window_is_resumed_with_another_window_size(empty_server: MariaDb, folder: Path) -> None:
    # the second run takes more rows per window, but the open window keeps its end
    with pytest.raises(Crash):
        run(empty_server, folder, at("batch", 4, crash), window_rows=3)
    run(empty_server, folder, window_rows=1000)
    assert_whole(empty_server)


def crash() -> None:
    raise Crash


def test_open_window_is_not_resumed_with_other_content(empty_server: MariaDb, folder: Path) -> None:
    with pytest.raises(Crash):
        run(empty_server, folder, at("opened", 1, crash))
    write_files(folder, Story().put((1, "", "other")).written)
    for other in folder.glob("binlog-*[1-9]-*"):
        other.unlink()
    with pytest.raises(CheckpointConflict, match="differs from the one that this run's files"):
        run(empty_server, folder)
    assert rows(empty_server, "SELECT * FROM app.t") == []


def cut(files: list[Path]) -> None:
    files[2].write_bytes(files[2].read_bytes()[:-3])


def damage(files: list[Path]) -> None:
    content = bytearray(files[2].read_bytes())
    content[-8] ^= 1
    files[2].write_bytes(content)


def remove(files: list[Path]) -> None:
    files[2].unlink()


def duplicate(files: list[Path]) -> None:
    files[2].with_name(files[2].name.replace("20240101", "20240202")).write_bytes(files[2].read_bytes())


@pytest.mark.parametrize("harm", [cut, damage, remove, duplicate])
def test_incomplete_files_are_named_and_nothing_is_written(
    empty_server: MariaDb, folder: Path, harm: Callable[[list[Path]], None]
) -> None:  # S3-13: it fails before the target is touched, and the message names the position
    files = sorted(folder.glob("binlog-*"))
    assert len(files) > 3
    harm(files)
    with pytest.raises(Permanent, match=files[2].name if harm is not remove else "missing=2"):
        run(empty_server, folder, window_rows=1)
    assert rows(empty_server, "SELECT * FROM app.t") == []
    assert (
        rows(empty_server, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE 'binlake%'")
        == []
    )


def test_torn_end_of_the_last_file_is_accepted_only_on_request(empty_server: MariaDb, folder: Path) -> None:
    last = sorted(folder.glob("binlog-*"))[-1]
    last.write_bytes(last.read_bytes() + record(b"more")[:-2])
    with pytest.raises(Permanent, match=last.name):
        run(empty_server, folder)
    run(empty_server, folder, torn_end=True)
    assert_whole(empty_server)


def test_run_with_a_later_end_continues_an_earlier_one(empty_server: MariaDb, folder: Path) -> None:
    # both ends are inclusive: 1010 is in the first range
    assert run(empty_server, folder, start_tso=1010, stop_tso=1010).rows == 2
    assert run(empty_server, folder, stop_tso=1020).rows == 3
    # an empty range
    assert run(empty_server, folder, stop_tso=1025).state == "already"
    assert run(empty_server, folder, stop_tso=5, name="before").state == "already"
    run(empty_server, folder)
    assert_whole(empty_server)


def test_files_removed_by_retention_are_not_skipped_silently(empty_server: MariaDb, folder: Path) -> None:
    # files of a feed: the index says from which commit_ts on they are complete
    store = LocalStore(folder)
    write_index(folder, lo=1000)
    run(empty_server, folder, stop_tso=1010)
    drop_files_before(folder, 1025)
    with pytest.raises(Permanent, match=r"do not contain the whole range .*range=1011-.*held=1021-"):
        run(empty_server, folder)
    assert rows(empty_server, "SELECT id FROM app.t") == [(1,), (2,)]
    assert rows(empty_server, "SELECT line FROM app.log") == []

    # the same during a run, between the check and the apply
    execute(empty_server, "DROP DATABASE app", "DROP DATABASE binlake_reparo", "CREATE DATABASE app", *TABLES)
    write_files(folder, story().written, 100)
    write_index(folder, lo=1000)
    with pytest.raises(Permanent, match=r"do not contain the whole range .*held=1021-"):
        restore(settings_of(empty_server, folder), store, say=lambda _: drop_files_before(folder, 1025))
    assert rows(empty_server, "SELECT id FROM app.t") == []

    # without a start, a run begins with the files
    execute(empty_server, "INSERT INTO app.t VALUES (1, 'a'), (2, 'b')")
    execute(empty_server, "INSERT INTO app.log VALUES ('one'), ('two'), ('two')")
    assert run(empty_server, folder, stop_tso=1080).begin == 1020
    assert_whole(empty_server)


def test_gap_between_two_runs_is_refused(empty_server: MariaDb, folder: Path) -> None:
    run(empty_server, folder, stop_tso=1010)
    with pytest.raises(CheckpointConflict, match="ended before the start"):
        run(empty_server, folder, start_tso=1030)
    # another name for another base
    assert run(empty_server, folder, start_tso=1030, stop_tso=1030, name="other").rows == 1


def test_base_of_another_commit_is_refused(empty_server: MariaDb, folder: Path) -> None:
    execute(empty_server, "ALTER TABLE app.t DROP COLUMN v")
    with pytest.raises(SchemaError, match="column=v commit_ts=1010"):
        run(empty_server, folder)
    execute(empty_server, "DROP TABLE app.t")
    with pytest.raises(SchemaError, match=r"table=app\.t commit_ts=1010"):
        run(empty_server, folder)


def test_ignored_table_may_be_missing(empty_server: MariaDb, folder: Path) -> None:
    execute(empty_server, "DROP TABLE app.t")
    run(empty_server, folder, replicate_ignore_table=[{"db-name": "~^a", "tbl-name": "T"}])
    assert [line for (line,) in rows(empty_server, "SELECT line FROM app.log ORDER BY line")] == LINES


def test_ddl_already_in_the_base_stops_with_an_error(empty_server: MariaDb, folder: Path) -> None:
    execute(empty_server, "ALTER TABLE app.t ADD COLUMN w INT DEFAULT 5")
    with pytest.raises(TargetRefused, match="Duplicate column"):
        run(empty_server, folder)


def test_rows_in_unusual_encodings_are_read_one_by_one(empty_server: MariaDb, folder: Path) -> None:
    # protobuf allows fields in any order; a TIMESTAMP is a text in the drainer's zone
    execute(empty_server, "CREATE TABLE app.at (id BIGINT PRIMARY KEY, ts TIMESTAMP NULL, d DECIMAL(5,2))")
    columns = [column_of("id", 8), column_of("ts", 7), column_of("d", 0xF6)]
    values = [("1", "2024-07-01 02:00:00", "1.50"), ("2", None, None), ("3", "2024-01-01 00:30:00", "-0.10")]
    usual = [[column_bytes(*cell) for cell in zip(columns, row, strict=True)] for row in values]
    # the value before its name
    odd = [field(4, datum("4", columns[0])) + field(1, b"id") + field(2, b"\x08"), *usual[1][1:]]
    events = [event_bytes("app", "at", "I", row) for row in (*usual, odd)]
    own = folder / "own"
    own.mkdir()
    write_files(own, [Written(1010, transaction_bytes(1010, events))])
    run(empty_server, own, time_zone="Europe/Berlin")
    assert rows(empty_server, "SELECT id, UNIX_TIMESTAMP(ts), CAST(d AS CHAR) FROM app.at ORDER BY id") == [
        (1, 1719792000, "1.50"), (2, None, None), (3, 1704065400, "-0.10"), (4, None, None),
    ]  # fmt: skip
