"""A table that fails does not stop the others: it is set aside, skipped in the ledger, and brought back later."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest
from support.mariadb import MariaDb, execute, rows
from support.rowhistory import KEYED, KEYLESS, plan
from support.windows import CLUSTER, NAME, Crash, Window, apply, at, crashing

from binlake.changes.net import RowEvent
from binlake.changes.ordered import PlanOptions
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import LandedDdl
from binlake.errors import CheckpointConflict, Drift, TargetRefused, Transient
from binlake.rows.schema.state import DdlSide
from binlake.spark_jobs.commands.table import set_aside
from binlake.statements.batch import parse_statement_table
from binlake.target import ExpectedState, SegmentPlan, TargetSession
from binlake.target.apply.position import read_position
from binlake.target.apply.settled import SettledTarget
from binlake.target.claim.checkpoint import read_aside
from binlake.target.definitions.definitions import read_definitions
from binlake.window.cuts import build_refusing_batch

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

T, LOG = ("app", "t"), ("app", "log")
PASSED = "SELECT segment, phase, batch FROM tidb_binlog.binlake_ledger WHERE atomic = 2 ORDER BY 1, 2, 3"


@pytest.fixture
def policy(target: TargetSection) -> TargetSection:
    return target.model_copy(update={"on_table_error": "set-aside"})


def checkpoint(server: MariaDb) -> tuple[int, bool]:
    found = json.loads(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])
    return found["commitTS"], found["consistent"]


def list_aside(target: TargetSection) -> dict[tuple[str, str], tuple[int, str]]:
    with closing(TargetSession(target)) as session:
        found = read_aside(session, target.checkpoint_schema, CLUSTER)
    return {name: (one.since, one.by) for name, one in found.items()}


def window_of_both(target: TargetSection, lo: int = 100, hi: int = 200, key: int = 1) -> Window:
    """A window with rows of both tables, and their current definitions."""
    return Window(lo, hi).put((key, f"v{key}"), verify=True).log(f"line {key}").into(target, T, LOG)


def drop_t(server: MariaDb) -> None:
    execute(server, "DROP TABLE app.t")


def change_t(server: MariaDb) -> None:
    execute(server, "ALTER TABLE app.t MODIFY v INT")


@pytest.mark.parametrize("broken", [drop_t, change_t])
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_broken_table_stops_the_run_by_default_and_can_be_set_aside_in_the_open_window(
    server: MariaDb, target: TargetSection, broken: Callable[[MariaDb], None], mode: str
) -> None:  # U-16
    target = target.model_copy(update={"mode": mode})
    window = window_of_both(target)
    broken(server)
    with pytest.raises(Drift) as stop:
        apply(target, window)
    assert checkpoint(server) == (100, False)
    assert "binlake table aside --table app.t" in stop.value.hint
    set_aside(target, CLUSTER, NAME, [T], "found broken", 0)
    result = apply(target, window)
    assert (result.state, result.passed_over, result.batches) == ("applied", 1, 1)
    assert rows(server, "SELECT line FROM app.log") == [("line 1",)]
    # DESIGN 3.8, 3.11: the target differs from the source; the ledger records what was skipped
    assert checkpoint(server) == (200, False)
    assert rows(server, PASSED) == [(0, 2, 0)]
    assert list_aside(target) == {T: (100, "command")}


@pytest.mark.parametrize("broken", [drop_t, change_t])
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_policy_sets_a_broken_table_aside_and_other_tables_continue(
    server: MariaDb, policy: TargetSection, broken: Callable[[MariaDb], None], mode: str
) -> None:  # U-16
    policy = policy.model_copy(update={"mode": mode})
    first, second = window_of_both(policy), window_of_both(policy, 200, 300, key=2)
    broken(server)
    result = apply(policy, first)
    assert [one["table"] for one in result.newly_aside] == ["app.t"]
    assert result.tables == {LOG}
    # It is not set aside again and keeps its first position.
    again = apply(policy, second)
    assert (again.newly_aside, [one["table"] for one in again.aside]) == ([], ["app.t"])
    assert list_aside(policy) == {T: (100, "policy")}
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("line 1",), ("line 2",)]
    assert checkpoint(server) == (300, False)


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_refused_row_sets_its_table_aside_and_stored_rows_stay_exact(
    server: MariaDb, policy: TargetSection, mode: str
) -> None:
    policy = policy.model_copy(update={"mode": mode})
    window = Window(100, 200).log("a", "a").put((1, "x" * 30)).log("b").into(policy, T, LOG)
    result = apply(policy, window)
    assert "Data too long" in result.newly_aside[0]["reason"]
    # The keyless table has each row once, although the segment was tried twice.
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("a",), ("a",), ("b",)]
    assert rows(server, "SELECT * FROM app.t") == []


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_missing_written_key_sets_its_table_aside(server: MariaDb, policy: TargetSection, mode: str) -> None:
    policy = policy.model_copy(update={"mode": mode})
    execute(server, "ALTER TABLE app.t MODIFY v VARCHAR(20) COLLATE utf8mb4_general_ci, ADD UNIQUE KEY (v)")
    window = Window(100, 200).put((1, "a"), verify=True).put((2, "A"), verify=True).log("x").into(policy, T, LOG)
    assert "two rows of the source have become one" in apply(policy, window).newly_aside[0]["reason"]
    assert rows(server, "SELECT line FROM app.log") == [("x",)]
    assert checkpoint(server) == (200, False)


def window_around_ddl(target: TargetSection, sql: str, names: list[tuple[str, str]]) -> Window:
    """A window with rows, a DDL on `names`, and more rows."""
    with closing(TargetSession(target)) as session:
        forms = read_definitions(session, names, target.db_type)
    window = Window(100, 300).log("before").into(target, LOG)
    window.ddl(200, sql, names, ExpectedState(tables=forms.tables))
    return window.log("behind").into(target, LOG)


def test_refused_ddl_sets_only_its_table_aside(server: MariaDb, policy: TargetSection) -> None:
    execute(server, "INSERT INTO app.t VALUES (1, 'same'), (2, 'same')")
    window = window_around_ddl(policy, "ALTER TABLE t ADD UNIQUE KEY (v)", [T]).put((3, "c"))
    result = apply(policy, window)
    assert (result.ddls, result.passed_over) == (0, 2)
    assert "Duplicate entry" in result.newly_aside[0]["reason"]
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("before",), ("behind",)]
    assert rows(server, "SELECT id FROM app.t ORDER BY 1") == [(1,), (2,)]
    # The ledger also has a row for the DDL (phase 0), in its segment.
    assert rows(server, PASSED) == [(1, 0, 0), (1, 2, 1)]
    assert list_aside(policy) == {T: (199, "policy")}


def test_failed_replacement_of_a_ddl_sets_its_table_aside(server: MariaDb, policy: TargetSection) -> None:
    nothing = DdlSide((), ())
    ddl = LandedDdl(200, 200, 199, 1, 1, 34, "app", "t", "q", "q", "apply", "", nothing, nothing)
    stands = build_refusing_batch(1, ddl, "it cannot be said: it's a 'sequence'" + "!" * 200 + "?")
    result = apply(policy, window_around_ddl(policy, stands.sql[-1], [T]).put((1, "a")))
    reason = result.newly_aside[0]["reason"]
    assert reason.startswith("a DDL failed: it cannot be said: it's a 'sequence'!!!")
    assert "!?" in reason  # in full: a server's own message ends after 128 characters
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("before",), ("behind",)]


def test_ddl_on_a_table_aside_sets_its_other_tables_aside(server: MariaDb, target: TargetSection) -> None:
    # After a rename that was not run, neither name matches the source.
    apply(target, window_of_both(target))
    set_aside(target, CLUSTER, NAME, [T], "by hand", 0)
    window = Window(200, 400).ddl(300, "RENAME TABLE t TO u", [T, ("app", "u")])
    window.statement("REPLACE INTO app.u VALUES (9, 'x')", table="u").log("behind")
    assert apply(target, window).passed_over == 2
    assert list_aside(target) == {T: (200, "command"), ("app", "u"): (200, "policy")}
    assert rows(server, "SHOW TABLES IN app") == [("log",), ("t",)]


def test_ddl_on_a_database_runs_even_if_tables_in_it_are_aside(server: MariaDb, target: TargetSection) -> None:
    apply(target, window_of_both(target))
    set_aside(target, CLUSTER, NAME, [T], "by hand", 0)
    apply(target, Window(200, 400).ddl(300, "DROP DATABASE app", [("app", "")], ExpectedState({"app": False})))
    assert rows(server, "SHOW DATABASES LIKE 'app'") == []


def test_other_tables_statements_of_an_ordered_batch_run(server: MariaDb, policy: TargetSection) -> None:
    execute(
        server,
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id INT PRIMARY KEY, u INT, v INT)",
        "CREATE TABLE d.log (line INT, n INT)",
    )
    policy = policy.model_copy(update={"mode": "ordered", "worker_count": 2})
    events = []
    for number in range(6):
        image = {"id": str(number), "u": None, "v": None} if number % 2 else {"line": str(number), "n": "0"}
        definition = KEYED if number % 2 else KEYLESS
        events.append((definition, RowEvent(110 + number, 1, 0, "insert", None, image)))
    batches = plan(events, PlanOptions(workers=1), False)
    assert any(not batch.table for batch in batches)
    window = Window(100, 200, written=batches)
    window.plans = [SegmentPlan(0, 200, 1, ordered=True)]
    execute(server, "DROP TABLE d.t")
    result = apply(policy, window)
    assert [one["table"] for one in result.newly_aside] == ["d.t"]
    assert rows(server, "SELECT line FROM d.log ORDER BY 1") == [(0,), (2,), (4,)]
    execute(server, "DROP DATABASE d")


def test_table_of_a_statement_is_read_from_its_beginning() -> None:
    assert parse_statement_table("INSERT INTO `a`.`b` (`x`) VALUES (1)") == ("a", "b")
    assert parse_statement_table("REPLACE INTO `a``b`.`c d` (`x`) VALUES (1)") == ("a`b", "c d")
    assert parse_statement_table("DELETE FROM `a`.`b` WHERE `x` = 'UPDATE `c`.`d` '") == ("a", "b")
    assert parse_statement_table("UPDATE `a`.`b` SET `x` = 1") == ("a", "b")


def test_server_wide_error_sets_no_table_aside(server: MariaDb, policy: TargetSection) -> None:
    window = window_of_both(policy)
    trigger = (
        "CREATE TRIGGER app.full BEFORE INSERT ON app.t FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021"
    )
    execute(server, trigger)
    with pytest.raises(TargetRefused):
        apply(policy, window)
    assert list_aside(policy) == {}


def test_no_more_tables_than_configured_are_set_aside(server: MariaDb, policy: TargetSection) -> None:
    policy = policy.model_copy(update={"most_set_aside": 1})
    window = window_of_both(policy)
    execute(server, "DROP TABLE app.t", "DROP TABLE app.log")
    with pytest.raises(Drift, match="most-set-aside = 1"):
        apply(policy, window)
    assert list_aside(policy) == {}


@pytest.mark.parametrize(("step", "number"), [("aside", 1), ("batch", 1), ("batch", 2), ("before_commit", 3)])
def test_crash_around_setting_aside_resumes_with_the_same_tables_aside(
    server: MariaDb, policy: TargetSection, step: str, number: int
) -> None:
    policy = policy.model_copy(update={"mode": "parallel", "worker_count": 1})
    window = Window(100, 200).log("a").put((1, "x" * 30)).log("b").into(policy, T, LOG)

    def die() -> None:
        raise Crash

    with pytest.raises(Crash):
        apply(policy, window, at(step, number, die))
    assert apply(policy, window).state == "applied"
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("a",), ("b",)]
    assert list_aside(policy) == {T: (100, "policy")}


def test_target_can_be_held_between_windows_and_is_consistent_after_the_last_table_returns(
    server: MariaDb, target: TargetSection
) -> None:
    apply(target, window_of_both(target))
    set_aside(target, CLUSTER, NAME, [T, LOG], "by hand", 0)
    apply(target, window_of_both(target, 200, 300, key=2))
    assert read_position(target, NAME, CLUSTER).aside == {T, LOG}
    with SettledTarget(target, NAME, CLUSTER) as held:
        assert held.read_checkpoint().commit_ts == 300
        found = held.read_aside_tables()
        held.bring_back(found[T], 300)
        assert checkpoint(server) == (300, False)
        held.bring_back(found[LOG], 300)
    assert checkpoint(server) == (300, True)
    assert list_aside(target) == {}


def test_table_aside_does_not_force_safe_mode_for_others(server: MariaDb, target: TargetSection) -> None:
    # `consistent` is false although there was no other writer.
    auto = target.model_copy(update={"safe_mode": "auto"})
    apply(auto, window_of_both(auto))
    set_aside(auto, CLUSTER, NAME, [T], "by hand", 0)
    assert read_position(auto, NAME, CLUSTER).forms == "plain"
    apply(auto, window_of_both(auto, 200, 300, key=2))
    assert rows(server, "SELECT exit_ts FROM tidb_binlog.binlake_progress") == [(300,)]


def test_tables_aside_and_inconsistent_applies_exclude_each_other(target: TargetSection) -> None:
    target = target.model_copy(update={"safe_mode_duration_s": 0.0})
    apply(target, window_of_both(target))
    with SettledTarget(target, NAME, CLUSTER) as held:
        held.apply(list(window_of_both(target).read_batches(0, 2))[:1], 200, consistent=False)
    with pytest.raises(CheckpointConflict, match="matches no state of the source"):
        set_aside(target, CLUSTER, NAME, [T], "by hand", 0)
    apply(target, window_of_both(target, 200, 300, key=2))
    set_aside(target, CLUSTER, NAME, [T], "by hand", 0)
    with SettledTarget(target, NAME, CLUSTER) as held, pytest.raises(CheckpointConflict, match="table back"):
        held.apply(list(window_of_both(target).read_batches(0, 2))[:1], 300, consistent=False)


def test_target_cannot_be_held_inside_an_open_window(server: MariaDb, target: TargetSection) -> None:
    window = window_of_both(target)
    drop_t(server)
    with pytest.raises(Drift):
        apply(target, window)
    set_aside(target, CLUSTER, NAME, [T], "found broken", 0)
    with pytest.raises(Transient):
        SettledTarget(target, NAME, CLUSTER).__enter__()


def test_target_of_an_older_version_gets_the_aside_table_with_its_next_window(
    server: MariaDb, target: TargetSection
) -> None:
    apply(target, window_of_both(target))
    execute(server, "DROP TABLE tidb_binlog.binlake_aside")
    assert read_position(target, NAME, CLUSTER).aside == frozenset()
    window = window_of_both(target, 200, 300, key=2)
    window.plans = [replace(window.plans[0], rows=2)]
    assert apply(target, window).state == "applied"
    assert rows(server, "SELECT COUNT(*) FROM tidb_binlog.binlake_aside") == [(0,)]


@pytest.mark.parametrize("seed", range(6))
def test_other_tables_stay_exact_with_random_failures(server: MariaDb, policy: TargetSection, seed: int) -> None:
    """Random windows and modes, a table that breaks in between, crashes at random steps: each line is stored once."""
    chance = Random(seed)
    lines: list[str] = []
    breaks = chance.randrange(5)
    for number in range(6):
        window = Window(100 + number, 101 + number)
        for key in range(chance.randint(1, 4)):
            text = f"{seed}-{number}-{key}"
            window.log(text, text).put((key, "x" * 30 if number >= breaks and chance.random() < 0.4 else text))
            lines += [text, text]
        window.into(policy, LOG)
        if number == breaks and chance.random() < 0.5:
            execute(server, "DROP TABLE IF EXISTS app.t")
        mode = policy.model_copy(update={"mode": chance.choice(["atomic", "parallel"]), "worker_count": 2})
        while True:
            try:
                apply(mode, window, crashing(chance, 0.05))
                break
            except Crash:
                server.end_sessions()
        assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [(line,) for line in sorted(lines)]
        assert checkpoint(server) == (101 + number, not list_aside(policy))
