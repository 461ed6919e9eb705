"""safe-mode = auto: writes use REPLACE only if rows of the window may already be on the target."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute, rows
from support.positions import accept_rows
from support.windows import CLUSTER, NAME, Window, apply, at, target_of

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict
from binlake.spark_jobs.commands.table import set_aside
from binlake.target import Checkpoint, TargetSession, read_position
from binlake.target.apply.position import choose_forms
from binlake.target.session.tables import create_tables

SECOND = 1000 << 18
START = 414529105591271429


@pytest.fixture
def auto(target: TargetSection) -> TargetSection:
    return target.model_copy(update={"safe_mode": "auto"})


def read_forms(target: TargetSection) -> str:
    return read_position(target, NAME, CLUSTER).forms


def write_drainer_checkpoint(server: MariaDb, ts: int, consistent: str) -> None:
    row = f'{{"consistent":{consistent},"commitTS":{ts},"ts-map":{{}}}}'
    execute(
        server,
        "CREATE DATABASE IF NOT EXISTS tidb_binlog",
        "CREATE TABLE IF NOT EXISTS tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY,"
        " checkPoint MEDIUMTEXT)",
        f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, '{row}')",
    )
    accept_rows(server)


@pytest.mark.parametrize(("value", "meant"), [(True, "always"), (False, "auto"), ("never", "never")])
def test_booleans_are_accepted_as_safe_mode(value: object, meant: str) -> None:
    # S4-37: safe-mode = true as the article writes it
    assert TargetSection.model_validate({"safe-mode": value}).safe_mode == meant


def test_safe_mode_follows_from_configuration_and_exit_point() -> None:
    # S4-39 (equal: clean), S4-40 (below: safe); a target without a checkpoint is safe
    at_500 = Checkpoint(500, False)
    auto = TargetSection(safe_mode="auto")
    assert [choose_forms(auto, at_500, ts) for ts in (0, 499, 500, 501)] == ["plain", "plain", "plain", "safe"]
    assert choose_forms(auto, None, 0) == "safe"
    assert choose_forms(TargetSection(), at_500, 0) == "safe"
    assert choose_forms(TargetSection(safe_mode="never"), at_500, 800) == "plain"


@pytest.mark.mariadb
def test_safe_mode_ends_after_a_clean_window(auto: TargetSection) -> None:
    # U-26, S4-37, S4-42
    assert read_forms(auto) == "safe"
    apply(auto, Window(0, 100).put((1, "a")))
    assert read_forms(auto) == "plain"


@pytest.mark.mariadb
def test_position_computed_for_the_end_of_a_window_is_the_one_then_read(server: MariaDb, auto: TargetSection) -> None:
    # The next window is derived ahead with the computed one. The second window ends below the exit point of the first.
    for checkpoint, window in ((None, Window(0, 800)), (500, Window(500, 700)), (700, Window(700, 900))):
        if checkpoint == 500:
            write_drainer_checkpoint(server, 500, "true")
        computed = read_position(auto, NAME, CLUSTER).compute_after_window(auto, window.hi)
        apply(auto, window.put((1, "a")))
        assert computed == read_position(auto, NAME, CLUSTER)


@pytest.mark.mariadb
def test_checkpoint_below_the_exit_point_is_safe_and_inconsistent_until_passed(
    server: MariaDb, auto: TargetSection
) -> None:
    # S4-38, S4-40: windows up to 800 were started, then the checkpoint went back to 500
    apply(auto, Window(0, 800).put((1, "a")))
    write_drainer_checkpoint(server, 500, "true")
    assert read_forms(auto) == "safe"
    apply(auto, Window(500, 700).put((1, "b")))
    # DESIGN 3.8: changes between 700 and 800 are still on the target
    assert rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(0,)]
    assert rows(server, "SELECT exit_ts FROM tidb_binlog.binlake_progress") == [(800,)]
    assert read_forms(auto) == "safe"
    apply(auto, Window(700, 900).put((1, "c")))
    assert rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(1,)]
    assert read_forms(auto) == "plain"


@pytest.mark.mariadb
def test_unclean_checkpoint_of_another_writer_is_safe_for_a_minute(server: MariaDb, auto: TargetSection) -> None:
    # S4-41: no exit point; the minute is measured in commit time
    write_drainer_checkpoint(server, START, "false")
    with pytest.raises(CheckpointConflict, match="safe-mode-duration-s is 0"):
        read_forms(auto.model_copy(update={"safe_mode_duration_s": 0}))
    assert read_forms(auto) == "safe"
    apply(auto, Window(START, START + 30 * SECOND))
    assert read_forms(auto) == "safe"
    apply(auto, Window(START + 30 * SECOND, START + 70 * SECOND))
    assert read_forms(auto) == "plain"
    # The other writer wrote again, past our exit point.
    write_drainer_checkpoint(server, START + 90 * SECOND, "false")
    assert read_forms(auto) == "safe"


@pytest.mark.mariadb
def test_clean_checkpoint_of_another_writer_needs_no_safe_mode(server: MariaDb, auto: TargetSection) -> None:
    # S4-37: `consistent` is true only after a clean end
    write_drainer_checkpoint(server, START, "true")
    assert read_forms(auto) == "plain"


@pytest.mark.mariadb
def test_exit_point_is_stored_before_the_first_write(server: MariaDb) -> None:
    # S4-38: no visible change has a commit_ts above exit_ts
    target, seen = target_of(server, mode="parallel", safe_mode="auto", worker_count=2), []
    execute(server, "DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
    execute(server, "CREATE TABLE app.t (id INT PRIMARY KEY, v TEXT)")
    execute(server, "DROP DATABASE IF EXISTS tidb_binlog")
    look = at("batch", 1, lambda: seen.extend(rows(server, "SELECT exit_ts FROM tidb_binlog.binlake_progress")))
    apply(target, Window(0, 100).put((1, "a")), look)
    assert seen == [(100,)]


@pytest.mark.mariadb
def test_writer_that_resumed_exactly_at_our_exit_point_is_detected(server: MariaDb, auto: TargetSection) -> None:
    # S4-41, R-59: a drainer that resumes from our clean end writes `consistent: false` with the same commitTS
    apply(auto, Window(START - SECOND, START).put((1, "a")))
    assert read_forms(auto) == "plain"
    write_drainer_checkpoint(server, START, "false")
    assert read_forms(auto) == "safe"


@pytest.mark.mariadb
def test_exit_ts_is_set_only_if_rows_may_be_ahead_of_the_checkpoint(server: MariaDb, auto: TargetSection) -> None:
    def exit_ts() -> int:
        return read_position(auto, NAME, CLUSTER).exit_ts

    assert exit_ts() == 0
    with closing(TargetSession(auto)) as session:
        create_tables(session, auto.checkpoint_schema)
    assert exit_ts() == 0
    write_drainer_checkpoint(server, START, "true")
    assert exit_ts() == 0
    write_drainer_checkpoint(server, START, "false")
    assert exit_ts() == START + 60 * SECOND
    apply(auto, Window(START, START + 90 * SECOND).put((1, "a")))
    assert exit_ts() == START + 90 * SECOND
    # `consistent` is false only because of this table; there was no other writer.
    set_aside(auto, CLUSTER, NAME, [("app", "t")], "by hand", 0)
    assert exit_ts() == START + 90 * SECOND
