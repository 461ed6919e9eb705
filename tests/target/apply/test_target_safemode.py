"""safe-mode = auto: writes are REPLACE only where rows of the window may be on the target already."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Window, apply, at, target_of

from binlake.config.model import Target
from binlake.errors import CheckpointConflict
from binlake.target import Checkpoint, Session, read_position
from binlake.target.apply.position import choose_forms
from binlake.target.commands.setaside import set_aside
from binlake.target.session.tables import create_tables

SECOND = 1000 << 18
START = 414529105591271429


@pytest.fixture
def auto(target: Target) -> Target:
    return target.model_copy(update={"safe_mode": "auto"})


def forms(target: Target) -> str:
    return read_position(target, NAME, CLUSTER).forms


def a_drainer_was_here(server: MariaDb, ts: int, consistent: str) -> None:
    row = f'{{"consistent":{consistent},"commitTS":{ts},"ts-map":{{}}}}'
    execute(
        server,
        "CREATE DATABASE IF NOT EXISTS tidb_binlog",
        "CREATE TABLE IF NOT EXISTS tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY,"
        " checkPoint MEDIUMTEXT)",
        f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, '{row}')",
    )


@pytest.mark.parametrize(("value", "meant"), [(True, "always"), (False, "auto"), ("never", "never")])
def test_booleans_are_accepted(value: object, meant: str) -> None:
    # S4-37: safe-mode = true as the article writes it
    assert Target.model_validate({"safe-mode": value}).safe_mode == meant


def test_the_configured_mode_and_the_three_cases() -> None:
    # S4-39 (equal: clean), S4-40 (below: safe); a target nobody vouches for is safe
    at_500 = Checkpoint(500, False)
    auto = Target(safe_mode="auto")
    assert [choose_forms(auto, at_500, ts) for ts in (0, 499, 500, 501)] == ["plain", "plain", "plain", "safe"]
    assert choose_forms(auto, None, 0) == "safe"
    assert choose_forms(Target(), at_500, 0) == "safe"
    assert choose_forms(Target(safe_mode="never"), at_500, 800) == "plain"


@pytest.mark.mariadb
def test_safe_mode_ends_by_itself_after_a_clean_window(auto: Target) -> None:
    # U-26, S4-37, S4-42
    assert forms(auto) == "safe"
    apply(auto, Window(0, 100).put((1, "a")))
    assert forms(auto) == "plain"


@pytest.mark.mariadb
def test_a_checkpoint_below_the_exit_point_is_safe_and_not_consistent_until_it_is_passed(
    server: MariaDb, auto: Target
) -> None:
    # S4-38, S4-40: windows up to 800 were begun, the checkpoint went back to 500
    apply(auto, Window(0, 800).put((1, "a")))
    a_drainer_was_here(server, 500, "true")
    assert forms(auto) == "safe"
    apply(auto, Window(500, 700).put((1, "b")))
    # DESIGN 3.8: what came between 700 and 800 is still there
    assert rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(0,)]
    assert rows(server, "SELECT exit_ts FROM tidb_binlog.binlake_progress") == [(800,)]
    assert forms(auto) == "safe"
    apply(auto, Window(700, 900).put((1, "c")))
    assert rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(1,)]
    assert forms(auto) == "plain"


@pytest.mark.mariadb
def test_an_unclean_checkpoint_of_another_writer_is_safe_for_a_minute(server: MariaDb, auto: Target) -> None:
    # S4-41: no exit point; measured in commit time
    a_drainer_was_here(server, START, "false")
    with pytest.raises(CheckpointConflict, match="safe-mode-duration-s is 0"):
        forms(auto.model_copy(update={"safe_mode_duration_s": 0}))
    assert forms(auto) == "safe"
    apply(auto, Window(START, START + 30 * SECOND))
    assert forms(auto) == "safe"
    apply(auto, Window(START + 30 * SECOND, START + 70 * SECOND))
    assert forms(auto) == "plain"
    # It was at work again, behind our exit point.
    a_drainer_was_here(server, START + 90 * SECOND, "false")
    assert forms(auto) == "safe"


@pytest.mark.mariadb
def test_a_clean_checkpoint_of_another_writer_needs_no_safe_mode(server: MariaDb, auto: Target) -> None:
    # S4-37: `consistent` is true only after a clean end
    a_drainer_was_here(server, START, "true")
    assert forms(auto) == "plain"


@pytest.mark.mariadb
def test_the_exit_point_is_stored_before_the_first_write(server: MariaDb) -> None:
    # S4-38: whatever is visible has a commit_ts of at most exit_ts
    target, seen = target_of(server, mode="parallel", safe_mode="auto", worker_count=2), []
    execute(server, "DROP DATABASE IF EXISTS app", "CREATE DATABASE app")
    execute(server, "CREATE TABLE app.t (id INT PRIMARY KEY, v TEXT)")
    execute(server, "DROP DATABASE IF EXISTS tidb_binlog")
    look = at("batch", 1, lambda: seen.extend(rows(server, "SELECT exit_ts FROM tidb_binlog.binlake_progress")))
    apply(target, Window(0, 100).put((1, "a")), look)
    assert seen == [(100,)]


@pytest.mark.mariadb
def test_a_writer_that_began_again_right_at_our_exit_point_is_noticed(server: MariaDb, auto: Target) -> None:
    # S4-41, R-59: a drainer that takes up our clean end says `consistent: false` at the very same commitTS
    apply(auto, Window(START - SECOND, START).put((1, "a")))
    assert forms(auto) == "plain"
    a_drainer_was_here(server, START, "false")
    assert forms(auto) == "safe"


@pytest.mark.mariadb
def test_rows_may_be_there_up_to_the_exit_point_and_nowhere_without_a_sign_of_any(
    server: MariaDb, auto: Target
) -> None:
    def exit_ts() -> int:
        return read_position(auto, NAME, CLUSTER).exit_ts

    assert exit_ts() == 0
    with closing(Session(auto)) as session:
        create_tables(session, auto.checkpoint_schema)
    assert exit_ts() == 0
    a_drainer_was_here(server, START, "true")
    assert exit_ts() == 0
    a_drainer_was_here(server, START, "false")
    assert exit_ts() == START + 60 * SECOND
    apply(auto, Window(START, START + 90 * SECOND).put((1, "a")))
    assert exit_ts() == START + 90 * SECOND
    # `consistent` is false for this table alone: no other writer was there.
    set_aside(auto, CLUSTER, NAME, [("app", "t")], "by hand", 0)
    assert exit_ts() == START + 90 * SECOND
