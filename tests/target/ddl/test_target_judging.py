"""What two readings of the target prove about a DDL that was started between them (R-04)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, execute, rows

from binlake.config.servers import TargetSection
from binlake.target import ExpectedState, TargetSession
from binlake.target.ddl.proof import Evidence, RenameMarker, Verdict, judge, list_differences, read_evidence
from binlake.target.definitions.definitions import read_definitions
from binlake.target.session.tables import create_tables

# Evidence for a statement that changes no definition: a swap of equal tables, an operator's comment.
BEFORE = Evidence("structure", "texts", {"a": "1", "b": "2"}, "server", shows=False)
# Evidence for a statement that changes the structure.
SHOWING = replace(BEFORE, shows=True)
ROWS_MOVE = ExpectedState(moves_rows=True)
ROWS_GO = ExpectedState(moves_rows=True, empty={("app", "a"): ()})
T = ("app", "t")


def with_numbers(**found: str) -> Evidence:
    return replace(BEFORE, numbers=found)


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (replace(SHOWING, shows=False, structure="other"), "after"),
        (SHOWING, "before"),
        # A failover, a restore or OPTIMIZE leaves the structure unchanged.
        (replace(SHOWING, texts="other", numbers={"a": "7", "b": "8"}, server="other"), "before"),
        (replace(SHOWING, structure="other"), "unknown"),
    ],
    ids=["difference is gone", "unchanged", "only texts, numbers and server changed", "structure changed"],
)
@pytest.mark.parametrize("after", [ExpectedState(), ROWS_GO], ids=["keeps rows", "removes rows"])
def test_ddl_that_changes_definitions_is_judged_by_the_structure(
    now: Evidence, verdict: Verdict, after: ExpectedState
) -> None:
    assert judge(SHOWING, now, after) == verdict


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        (BEFORE, "before"),
        (replace(BEFORE, texts="other"), "after"),
        # Another server may print the same definitions differently.
        (replace(BEFORE, texts="other", server="other"), "unknown"),
        (replace(BEFORE, server="other"), "unknown"),
        (replace(BEFORE, numbers=None), "unknown"),
        (with_numbers(a="2", b="1"), "after"),
        (with_numbers(a="1"), "after"),
        # OPTIMIZE, or someone's TRUNCATE, gives numbers that were not used before.
        (with_numbers(a="1", b="3"), "unknown"),
        (with_numbers(a="1", b="2", c="3"), "unknown"),
        (with_numbers(a="1", c="2"), "unknown"),
        (with_numbers(a="3"), "unknown"),
    ],
    ids=[
        "unchanged",
        "texts changed",
        "texts and server changed",
        "server changed",
        "numbers unreadable",
        "numbers swapped",
        "table gone",
        "new number",
        "table added with new number",
        "table replaced",
        "all numbers new",
    ],
)
def test_ddl_that_changes_no_definition_is_judged_by_texts_and_numbers_of_the_same_server(
    now: Evidence, verdict: Verdict
) -> None:
    assert judge(BEFORE, now, ExpectedState()) == verdict
    assert judge(BEFORE, now, None) == verdict


def test_numbers_unreadable_at_the_intent_prove_nothing() -> None:
    assert judge(replace(BEFORE, numbers=None), BEFORE, None) == "unknown"
    assert judge(replace(BEFORE, numbers=None), replace(BEFORE, numbers=None), None) == "unknown"


@pytest.mark.parametrize("begun", [BEFORE, SHOWING], ids=["hidden change", "visible change"])
def test_ddl_that_only_moves_rows_is_not_proven_by_definitions(begun: Evidence) -> None:
    # An index that the target always lacked, or a comment that someone adds meanwhile
    mended = replace(begun, shows=not begun.shows, structure="other", texts="other")
    assert judge(begun, mended, ROWS_MOVE) == "before"
    assert judge(begun, replace(mended, numbers={"a": "2", "b": "1"}), ROWS_MOVE) == "after"
    assert judge(begun, replace(mended, server="other"), ROWS_MOVE) == "unknown"


@pytest.fixture
def session(target: TargetSection) -> Iterator[TargetSession]:
    """A session on a target that has Binlake's tables."""
    with closing(TargetSession(target)) as opened:
        create_tables(opened, target.checkpoint_schema)
        yield opened


def collect_evidence(session: TargetSession, target: TargetSection, after: ExpectedState | None = None) -> Evidence:
    # A table that the DDL creates does not exist before it.
    return read_evidence(session, target, [T, ("app", "made")], after)


def list_changes(before: Evidence, now: Evidence) -> set[str]:
    return {name for name, value in now.to_dict().items() if before.to_dict()[name] != value}


@pytest.mark.mariadb
@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("INSERT INTO app.t VALUES (1, 'a')", set()),
        ("ALTER TABLE app.t COMMENT = 'a word', ALGORITHM = INPLACE", {"texts"}),
        ("ALTER TABLE app.t ADD COLUMN w INT, ALGORITHM = INSTANT", {"structure", "texts"}),
        ("ALTER TABLE app.t ENGINE = MyISAM", {"structure", "texts", "numbers"}),
        ("CREATE TABLE app.made (id INT PRIMARY KEY)", {"structure", "texts", "numbers"}),
        ("TRUNCATE TABLE app.t", {"numbers"}),
        ("OPTIMIZE TABLE app.t", {"numbers"}),
    ],
)
def test_evidence_shows_what_a_statement_changes(
    server: MariaDb, target: TargetSection, session: TargetSession, statement: str, what: set[str]
) -> None:
    before = collect_evidence(session, target)
    assert list_changes(before, collect_evidence(session, target)) == set()
    rows(server, statement)
    assert list_changes(before, collect_evidence(session, target)) == what


@pytest.mark.mariadb
def test_restored_copy_counts_as_another_server(server: MariaDb, target: TargetSection, session: TargetSession) -> None:
    before = collect_evidence(session, target)
    execute(server, "ALTER TABLE tidb_binlog.binlake_ledger FORCE")
    assert list_changes(before, collect_evidence(session, target)) == {"server"}
    assert json.loads(json.dumps(before.to_dict())) == before.to_dict()


@pytest.mark.mariadb
def test_ddl_shows_while_the_target_lacks_its_result(
    server: MariaDb, target: TargetSection, session: TargetSession
) -> None:
    execute(server, "CREATE TABLE app.like_t LIKE app.t", "ALTER TABLE app.like_t ADD INDEX by_v (v)")
    indexed = read_definitions(session, [("app", "like_t")], target.db_type).tables["app", "like_t"]
    after, emptied = ExpectedState(tables={T: indexed}), ExpectedState(empty={T: ()})
    assert not collect_evidence(session, target).shows
    assert list_differences(session, target, None) == []
    assert collect_evidence(session, target, after).shows
    assert list_differences(session, target, after) == ["app.t: index (v) is missing"]
    execute(server, "ALTER TABLE app.t ADD INDEX by_v (v)")
    assert not collect_evidence(session, target, after).shows
    assert not collect_evidence(session, target, emptied).shows
    execute(server, "INSERT INTO app.t VALUES (1, 'a')")
    assert collect_evidence(session, target, emptied).shows


@pytest.mark.mariadb
def test_rename_marker_moves_with_its_list_and_is_removed_after_it(server: MariaDb, session: TargetSession) -> None:
    sql = "RENAME TABLE app.t TO app.x, app.log TO app.t;"
    assert RenameMarker.of("tidb_binlog", "shop", 200, "TRUNCATE TABLE t") is None
    marker = RenameMarker.of("tidb_binlog", "shop", 200, sql)
    assert marker is not None
    # A leftover of the same DDL's earlier run, on a target that was restored to before it.
    execute(server, f"CREATE TABLE {marker.ended} (id INT)")
    marker.make(session)
    marker.make(session)
    assert marker.reach_verdict(session) == "before"
    session.execute(marker.add_to_list(sql))
    assert rows(server, "SHOW TABLES IN app") == [("t",), ("x",)]
    assert marker.reach_verdict(session) == "after"
    execute(server, f"CREATE TABLE {marker.begun} (id INT)")
    assert marker.reach_verdict(session) == "unknown"
    marker.remove(session)
    assert marker.reach_verdict(session) == "unknown"
    assert rows(server, "SHOW TABLES IN tidb_binlog LIKE 'binlake\\_kept%%'") == []
