"""Rows that a window changed are compared at the target with the lake's; the ledger records those that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.mariadb import MariaDb, execute
from support.shop import Shop
from support.tinylake import replication_toml, set_checkpoint
from support.watched import Watched
from support.workload import integer

from binlake import tso
from binlake.cli import run as main
from binlake.common.redaction import show_row_values
from binlake.config.servers import TargetSection
from binlake.errors import ConfigError
from binlake.extras.validation import keyedrows
from binlake.extras.validation import run as run_of_validation
from binlake.extras.validation.ledger import LOCK, ValidationLedger
from binlake.lake.lock import hold_lake_lock
from binlake.repair import rangerepair
from binlake.repair.serverside import open_source_snapshot

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


@pytest.fixture
def hidden() -> Iterator[None]:
    """A command that shows values restores the process's setting."""
    yield
    show_row_values(False)


@pytest.fixture
def watched(shop: Shop) -> Watched:
    return Watched(shop)


def test_rows_applied_by_windows_are_equal(watched: Watched) -> None:
    # S3-04 U-18
    watched.window()
    done = watched.run()
    assert (done.state, done.compared, done.errors, done.hi) == ("done", 3, 0, watched.lake.hi)
    assert done.tables == {"shop.log": "it has no key", "shop.real": "it has no key"}
    assert "[source.sql]" in done.why
    # Nothing is compared twice, and nothing remains due.
    assert watched.run().compared == 0
    assert watched.errors() == []


def test_rows_changed_at_the_target_are_errors_until_they_are_right(watched: Watched) -> None:
    watched.window()
    execute(
        watched.shop.server,
        "UPDATE shop.item SET n = 77 WHERE id = 9002",
        "DELETE FROM shop.item WHERE id = 9001",
        "INSERT INTO shop.item VALUES (9003, 'again', 1)",
    )
    done = watched.run()
    assert (done.found, done.errors) == (3, 3)
    assert watched.errors() == [
        ("new", "item", '["9001"]', "missing"), ("new", "item", '["9002"]', "different"),
        ("new", "item", '["9003"]', "extra"),
    ]  # fmt: skip
    missing, different, extra = ValidationLedger(watched.lake.paths).list_entries()
    assert (different.differing, json.loads(different.found)["n"], json.loads(different.expected)["n"]) == (
        ("n",), "77", "5",
    )  # fmt: skip
    assert (missing.found, extra.expected) == ("", "")
    # Each run counts them again, and they are resolved once they are right.
    execute(watched.shop.server, "UPDATE shop.item SET n = 5 WHERE id = 9002")
    again = watched.run()
    assert (again.found, again.settled, again.errors) == (0, 1, 2)
    assert [entry.times for entry in ValidationLedger(watched.lake.paths).list_entries(("new",))] == [2, 2]
    # A row that becomes wrong again is an error again, with the same id.
    execute(watched.shop.server, "UPDATE shop.item SET n = 78 WHERE id = 9002")
    watched.change(9002, n=6)
    watched.lake.land()
    set_checkpoint(watched.shop.server, watched.lake.hi)
    assert watched.run().found == 1
    assert [entry.number for entry in ValidationLedger(watched.lake.paths).list_entries(("new",))] == [1, 2, 3]


def test_ignored_error_stays_ignored_and_resolved_error_may_return(watched: Watched) -> None:
    watched.window()
    execute(watched.shop.server, "DELETE FROM shop.item WHERE id IN (9001, 9002)")
    watched.run()
    ledger = ValidationLedger(watched.lake.paths)
    ledger.mark([1], "ignored")
    ledger.mark([2], "resolved")
    ledger.save()
    # The operator resolved it: the row is not compared again until it changes.
    done = watched.run()
    assert (done.errors, done.ignored) == (0, 1)
    watched.change(9002, n=8)
    watched.change(9001, n=8)
    watched.lake.land()
    set_checkpoint(watched.shop.server, watched.lake.hi)
    done = watched.run()
    assert (done.found, done.errors, done.ignored) == (1, 1, 1)
    with pytest.raises(ConfigError, match="no error 9"):
        ledger.mark([9], "ignored")
    ledger = ValidationLedger(watched.lake.paths)
    assert [entry.number for entry in ledger.clear(None)] == [1]
    assert [entry.number for entry in ledger.clear([2])] == [2]
    ledger.save()
    assert watched.errors() == []


def test_only_rows_from_before_a_ddl_need_the_mirror(watched: Watched) -> None:
    watched.window()
    watched.shop.workload.add_column("shop", "item", integer("more"))
    execute(watched.shop.server, "ALTER TABLE shop.item ADD COLUMN more INT")
    watched.apply(mirrored=False)
    done = watched.run()
    assert "3 rows: the table's mirror has not passed a DDL" in done.tables["shop.item"]
    assert (done.compared, done.errors) == (0, 0)
    # Rows that changed after the DDL need no mirror.
    watched.window(key=9101, mirrored=False)
    execute(watched.shop.server, "DELETE FROM shop.item WHERE id = 9101")
    done = watched.run()
    assert (done.compared, done.tables.get("shop.item")) == (3, None)
    assert watched.errors() == [("new", "item", '["9101"]', "missing")]


def test_rows_from_before_a_ddl_are_compared_with_the_mirror(watched: Watched) -> None:
    watched.window()
    watched.shop.workload.add_column("shop", "item", integer("more"))
    watched.lake.land()
    execute(watched.shop.server, "ALTER TABLE shop.item ADD COLUMN more INT")
    watched.shop.refill()
    execute(watched.shop.server, "UPDATE shop.item SET more = 3 WHERE id = 9001")
    set_checkpoint(watched.shop.server, watched.lake.hi)
    done = watched.run()
    assert done.compared == 3
    assert watched.errors() == [("new", "item", '["9001"]', "different")]


def test_keys_that_differ_only_in_letter_case_are_different(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's collation matches `B-side` for `b-side`."""
    w = watched.shop.workload
    w.begin().insert("shop", "ci", k="b-side", n=1).commit()
    watched.apply()
    watched.run()
    w.begin().update("shop", "ci", watched.shop.rows("ci")[-1], k="B-side").commit()
    watched.apply()
    for module in (rangerepair, run_of_validation):
        monkeypatch.setattr(module, "compute_pseudo_random", lambda text, _: "b-side" not in text)
    done = watched.run(mode="sample", **{"sample-rows": 1})
    assert (done.compared, done.errors) == (1, 0)


def test_sample_has_rows_of_each_table(shop: Shop) -> None:
    watched = Watched(shop, mode="sample", **{"sample-rows": 4})
    w = shop.workload
    for key in range(2000, 2050):
        w.begin().insert("shop", "item", id=key, name=f"item {key}", n=1).commit()
    w.begin().insert("shop", "empty", id=1).commit()
    watched.apply()
    execute(shop.server, "DELETE FROM shop.item WHERE id >= 2000", "DELETE FROM shop.empty")
    done = watched.run()
    assert (done.compared, done.errors) == (4, 4)
    assert {table for _, table, _, _ in watched.errors()} == {"item", "empty"}


def test_too_old_changes_are_skipped(watched: Watched) -> None:
    watched.window()
    clock, w = watched.shop.workload.clock, watched.shop.workload
    w.clock = lambda: clock() + tso.compose(60_000)
    w.begin().insert("shop", "item", id=9010, name="item 9010", n=1).commit()
    watched.apply()
    execute(watched.shop.server, "DELETE FROM shop.item WHERE id > 9000")
    done = watched.run(**{"max-behind-s": 30})
    assert (done.compared, done.found, done.passed_over) == (1, 1, True)


def test_windows_sample_different_tables_if_not_all_fit(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    chances = {"shop.empty": 2, "shop.item": 1}
    monkeypatch.setattr(run_of_validation, "compute_pseudo_random", lambda text, _: chances.get(text, 0))
    w = watched.shop.workload
    for key in (9001, 9002):
        w.begin().insert("shop", "empty", id=key).insert("shop", "item", id=key, name=f"i {key}", n=1).commit()
        watched.apply()
        execute(watched.shop.server, "DELETE FROM shop.item", "DELETE FROM shop.empty")
        assert watched.run(mode="sample", **{"sample-rows": 1}).found == 1
        chances["shop.empty"] = 0
    assert [table for _, table, _, _ in watched.errors()] == ["item", "empty"]


def test_rows_missed_because_of_a_lost_connection_are_compared_by_the_next_run(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does not count as a comparison of its window, whatever tables it had compared before."""
    watched.window()
    watched.shop.workload.begin().insert("shop", "empty", id=9001).commit()
    watched.apply()
    execute(watched.shop.server, "DELETE FROM shop.item WHERE id = 9001")

    def lost(session: Any, table: Any, *more: Any) -> Any:
        if table.name == "item":
            execute(watched.shop.server, f"KILL {session.value('SELECT CONNECTION_ID()')}")
        return keyedrows.read_rows_by_key(session, table, *more)

    with monkeypatch.context() as patched:
        patched.setattr(run_of_validation, "read_rows_by_key", lost)
        done = watched.run()
    assert (done.state, watched.errors()) == ("postponed", [])
    done = watched.run()
    assert (done.state, done.compared, done.found) == ("done", 4, 1)


def test_ledger_size_is_limited(shop: Shop) -> None:
    watched = Watched(shop, **{"max-errors": 2})
    watched.window()
    execute(shop.server, "UPDATE shop.item SET n = 99")
    done = watched.run()
    assert (done.errors, done.dropped) == (2, 0)
    watched.change(9001, n=3)
    watched.shop.workload.begin().insert("shop", "item", id=9005, name="item 9005", n=3).commit()
    watched.lake.land()
    set_checkpoint(shop.server, watched.lake.hi)
    done = watched.run()
    assert (done.errors, done.dropped) == (2, 1)


@pytest.mark.parametrize("has_lock", [True, False])
def test_rows_that_cannot_be_compared_now_stay_due(watched: Watched, has_lock: bool) -> None:
    watched.window()
    if has_lock:
        with hold_lake_lock(watched.lake.paths, LOCK):
            done = watched.run()
    else:
        set_checkpoint(watched.shop.server, watched.lake.hi, consistent=False)
        done = watched.run()
    assert (done.state, done.compared) == ("postponed", 0)
    assert done.why
    set_checkpoint(watched.shop.server, watched.lake.hi)
    assert watched.run().compared == 3
    assert [event["state"] for event in watched.windows.read_events(stage="validate")] == ["done", "postponed", "done"]


@pytest.mark.usefixtures("hidden")
def test_command_lists_errors_and_records_the_operators_decisions(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "demo.toml"
    file.write_text(replication_toml(watched.lake.replication))

    def said(action: str, *more: str) -> Any:
        assert main(["validation", action, "--replication", str(file), *more, "--output", "json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    watched.window()
    execute(watched.shop.server, "UPDATE shop.item SET n = 77 WHERE id = 9002", "DELETE FROM shop.item WHERE id = 9001")
    watched.run()
    shown = said("show")
    assert [(entry["number"], entry["table"], entry["kind"], entry["columns"], entry["times"]) for entry in shown] == [
        (1, "shop.item", "missing", [], 1), (2, "shop.item", "different", ["n"], 1),
    ]  # fmt: skip
    # Not a terminal: the output may be a log.
    assert all(entry["key"].startswith("#") and "found" not in entry for entry in shown)
    status = said("status")
    assert (status["new"], status["pending"], status["last"]["compared"]) == (2, 0, 3)
    assert [entry["status"] for entry in said("ignore", "--error", "1")] == ["ignored"]
    assert [entry["status"] for entry in said("resolve", "--all")] == ["resolved"]
    assert (said("show"), len(said("show", "--status", "all"))) == ([], 2)
    assert [entry["number"] for entry in said("clear", "--all")] == [1, 2]
    assert said("show", "--status", "all") == []
    assert main(["validation", "ignore", "--replication", str(file), "--error", "9"]) == 1
    assert "binlake validation show" in capsys.readouterr().err
    events = watched.windows.read_events(stage="validation")
    assert [(event["state"], json.loads(event["detail"])["numbers"]) for event in events] == [
        ("ignored", [1]), ("resolved", [2]), ("cleared", [1, 2]),
    ]  # fmt: skip
    # In a terminal, or if the replication shows values, the output contains them.
    watched.run()
    file.write_text("show-row-values = true\n" + replication_toml(watched.lake.replication))
    execute(watched.shop.server, "UPDATE shop.item SET n = 78 WHERE id = 9002")
    watched.change(9002, n=6)
    watched.lake.land()
    set_checkpoint(watched.shop.server, watched.lake.hi)
    watched.run()
    (shown,) = said("show")
    assert (shown["key"], shown["expected"]["n"], shown["found"]["n"]) == ('["9002"]', "6", "78")


def test_source_with_snapshot_reads_is_compared_at_once(
    watched: Watched, second_mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MariaDB without writes instead of a TiDB with `tidb_snapshot`."""
    second_mariadb.wipe()
    watched.window()
    watched.shop.fill(second_mariadb)
    sql = {"host": second_mariadb.host, "port": second_mariadb.port, "user": second_mariadb.user}
    watched.source = {"sql": sql}
    done = watched.run()
    assert (done.against_source, "cannot be read as of a commit_ts" in done.why) == (0, True)
    watched.change(9002, n=6)
    watched.apply()
    execute(second_mariadb, "UPDATE shop.item SET n = 9 WHERE id = 9002")
    monkeypatch.setattr(keyedrows, "open_source_snapshot", partial(_read_without_writes, open_source_snapshot))
    done = watched.run()
    assert (done.against_source, done.found, done.why) == (1, 1, "")
    (error,) = ValidationLedger(watched.lake.paths).list_entries()
    assert (error.against, error.kind, error.differing) == ("source", "different", ("n",))
    execute(second_mariadb, "UPDATE shop.item SET n = 6 WHERE id = 9002")
    assert watched.run().settled == 1
    # Rows that a rule filters out do not count as the source's rows.
    assert "filters" in watched.run(filters=[{"schema-pattern": "*", "events": ["delete"], "action": "Ignore"}]).why


def _read_without_writes(read: Any, source: TargetSection, ts: int, *, stands_still: bool) -> Any:
    del stands_still
    return read(source, ts, stands_still=True)


def test_failed_comparison_fails_no_window(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise KeyError("a type that nobody knows")

    watched.window()
    monkeypatch.setattr(run_of_validation, "read_lake_rows", broken)
    done = watched.run()
    assert (done.state, "a type that nobody knows" in done.why) == ("postponed", True)


def test_many_keys_are_compared_in_ranges_and_each_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.window()
    execute(watched.shop.server, "DELETE FROM shop.item WHERE id = 9002")
    watched.run()
    monkeypatch.setattr(run_of_validation, "_KEYS_AT_ONCE", 2)
    for key in range(9010, 9015):
        watched.shop.workload.begin().insert("shop", "item", id=key, name=f"item {key}", n=1).commit()
    watched.change(9002, n=9)
    watched.lake.land()
    set_checkpoint(watched.shop.server, watched.lake.hi)
    done = watched.run()
    assert (done.compared, done.found, done.errors) == (6, 5, 6)
    assert [entry.times for entry in ValidationLedger(watched.lake.paths).list_entries()] == [2, 1, 1, 1, 1, 1]
    # From now on the row is compared because of its last change.
    assert (
        ValidationLedger(watched.lake.paths).list_entries()[0].since == watched.shop.workload.logged[-1].commit_ts - 1
    )
