"""One component applied to real Delta tables without Spark: renames, swaps, changed keys, copies, and crashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.tidb_json import INT_PK, column, index, table_def, table_info

from binlake.ddl.definitions import EVENTS, SYNC_DDL, LandedDdl, Segments, SegmentTable, WindowDefinitions
from binlake.lake.paths import LakePaths
from binlake.mirror import ComponentPlan, MirrorState, apply_component, plan_mirrors
from binlake.mirror.plan import PARTITIONS, derive_effects
from binlake.mirror.replica import Replica
from binlake.mirror.rows import read_mirror_texts
from binlake.mirror.versions import IN_PART
from binlake.rows.schema import Action, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide

MAP = pa.map_(pa.string(), pa.string())
NET = pa.schema(
    [("op", pa.string()), ("before", MAP), ("after", MAP), ("copies", pa.int64()), ("last_commit_ts", pa.int64())]
)

Row = dict[str, str | None]


IDS = {"id": 1, "k": 1, "v": 2, "w": 2, "x": 3}


def table(table_id: int, name: str, *names: str, key: bool = True, db: str = "d") -> TableDef:
    cols = [column(IDS[c], c, flag=INT_PK if key and c == names[0] else 0) for c in names]
    return table_def(table_info(table_id, name, cols, pk_is_handle=key), db)


def ddl(ts: int, action: Action, before: Sequence[TableDef], after: Sequence[TableDef]) -> LandedDdl:
    sides = DdlSide((), tuple(before)), DdlSide((), tuple(after))
    return LandedDdl(ts, ts, ts - 1, ts, ts, int(action), "d", "", "", "", "apply", "", *sides)


def change(segment: int, of: TableDef, op: str, row: Row, ts: int, copies: int = 1) -> dict[str, Any]:
    image = list(row.items())
    sides = {"before": image, "after": None} if op == "delete" else {"before": None, "after": image}
    place = {"segment": segment, "db": of.db, "table": of.name, "op": op}
    return {**place, **sides, "copies": copies, "last_commit_ts": ts}


class Mirrors:
    """The mirrors of one component in a folder, across windows."""

    def __init__(self, root: Path) -> None:
        self.paths = LakePaths(str(root))
        self.known: dict[tuple[str, str], MirrorState] = {}

    def plan(self, lo: int, hi: int, ddls: Sequence[LandedDdl], tables: dict[int, Sequence[TableDef]]) -> ComponentPlan:
        places = {SegmentTable(segment, of.db, of.name): of for segment, found in tables.items() for of in found}
        return ComponentPlan(0, Segments(lo, hi, tuple(d.commit_ts for d in ddls)), tuple(ddls), places, self.known)

    def apply(self, plan: ComponentPlan, *changes: dict[str, Any]) -> None:
        places: dict[SegmentTable, list[dict[str, Any]]] = {}
        for one in changes:
            places.setdefault(SegmentTable(one["segment"], one["db"], one["table"]), []).append(one)
        net = [(place, pa.Table.from_pylist(rows, schema=NET)) for place, rows in sorted(places.items())]
        for version in apply_component(plan, self.paths, 30, net).versions:
            self.known[version.db, version.table] = version

    def rows(self, of: TableDef) -> list[Row]:
        data = DeltaTable(self.paths.locate_mirror(of.db, of.name)).to_pyarrow_dataset().to_table()
        texts = read_mirror_texts(of, data)
        return sorted((dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)), key=str)


@pytest.fixture
def mirrors(tmp_path: Path) -> Mirrors:
    return Mirrors(tmp_path)


A, B, C = table(1, "a", "id", "v"), table(2, "b", "id", "w"), table(3, "c", "id", "v")


def test_swap_of_names_swaps_rows_and_a_rerun_does_not_swap_back(mirrors: Mirrors) -> None:
    first = mirrors.plan(0, 10, [], {0: [A, B]})
    mirrors.apply(first, change(0, A, "replace", {"id": "1", "v": "a"}, 5) | {}, change(0, B, "replace", _w("2"), 6))
    a_then, b_then = table(2, "a", "id", "w"), table(1, "b", "id", "v")
    swap = mirrors.plan(10, 20, [ddl(15, Action.RENAME_TABLES, [A, B], [a_then, b_then])], {})
    for _ in range(2):
        mirrors.apply(swap)
        assert mirrors.rows(a_then) == [_w("2")]
        assert [row["id"] for row in mirrors.rows(b_then)] == ["1"]


def _w(key: str) -> Row:
    return {"id": key, "w": "7"}


def test_rename_keeps_the_old_mirror_as_dropped(mirrors: Mirrors) -> None:
    mirrors.apply(mirrors.plan(0, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
    new = table(2, "c", "id", "w")
    renamed = mirrors.plan(10, 20, [ddl(15, Action.RENAME_TABLE, [B], [new])], {1: [new]})
    mirrors.apply(renamed, change(1, new, "replace", _w("3"), 16))
    assert mirrors.rows(new) == [_w("2"), _w("3")]
    assert mirrors.known["d", "b"].dropped
    assert not mirrors.known["d", "c"].dropped


def test_key_change_renumbers_every_row(mirrors: Mirrors) -> None:
    # identity of the segment; a table without a key may have equal rows.
    mirrors.apply(mirrors.plan(0, 10, [], {0: [B]}), *(change(0, B, "replace", _w(k), 6) for k in "23"))
    bag = table(2, "b", "w", key=False)
    dropped = mirrors.plan(10, 20, [ddl(15, Action.MULTI_SCHEMA_CHANGE, [B], [bag])], {1: [bag]})
    mirrors.apply(dropped, change(1, bag, "insert", {"w": "7"}, 16, 2))
    assert mirrors.rows(bag) == [{"w": "7"}] * 4
    copies = (
        DeltaTable(mirrors.paths.locate_mirror("d", "b")).to_pyarrow_dataset().to_table().column("_copy").to_pylist()
    )
    assert sorted(copies) == [0, 1, 2, 3]


def test_copies_of_equal_rows_are_applied_once_however_often_a_window_is_repeated(mirrors: Mirrors) -> None:
    #
    bag = table(2, "b", "w", key=False)
    first, second = mirrors.plan(0, 10, [], {0: [bag]}), mirrors.plan(10, 20, [], {0: [bag]})
    for _ in range(3):
        mirrors.apply(first, change(0, bag, "insert", {"w": "7"}, 5, 3))
    for plan in (second, second, first):
        mirrors.apply(plan, change(0, bag, "delete", {"w": "7"}, 15, 1))
    assert mirrors.rows(bag) == [{"w": "7"}] * 2


def test_crash_between_two_segments_is_finished_by_a_rerun(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch) -> None:
    bag = table(2, "b", "w", key=False)
    wider = table(2, "b", "w", "x", key=False)
    plan = mirrors.plan(0, 10, [ddl(5, Action.ADD_COLUMN, [bag], [wider])], {0: [bag], 1: [wider]})
    changes = change(0, bag, "insert", {"w": "1"}, 3), change(1, wider, "insert", {"w": "2", "x": "9"}, 7)
    with monkeypatch.context() as patch:
        patch.setattr(Replica, "reshape", _power_cut)
        with pytest.raises(ConnectionAbortedError):
            mirrors.apply(plan, *changes)
    mirrors.apply(plan, *changes)
    assert mirrors.rows(wider) == [{"w": "1", "x": None}, {"w": "2", "x": "9"}]


@pytest.mark.parametrize("key", [True, False])
def test_rows_ahead_of_a_ddl_at_the_windows_end_are_merged_once(mirrors: Mirrors, key: bool) -> None:
    #
    bag = table(2, "b", "id", key=key)
    wider = table(2, "b", "id", "v", key=key)
    added = replace(ddl(10, Action.ADD_COLUMN, [bag], [wider]), since=7)
    plan = ComponentPlan(
        0,
        Segments(0, 10, (7,)),
        (added,),
        {SegmentTable(0, "d", "b"): bag, SegmentTable(1, "d", "b"): wider},
        mirrors.known,
    )
    for _ in range(3):
        first, ahead = {"id": "1"}, {"id": "2", "v": "9"}
        mirrors.apply(plan, change(0, bag, "insert", first, 3), change(1, wider, "insert", ahead, 8))
    assert mirrors.rows(wider) == [{"id": "1", "v": None}, {"id": "2", "v": "9"}]


def test_compaction_keeps_the_version_needed_for_reads_as_of_a_time(mirrors: Mirrors) -> None:
    #
    for lo in (0, 10, 20):
        mirrors.apply(
            mirrors.plan(lo, lo + 10, [], {0: [A]}), change(0, A, "insert", {"id": str(lo), "v": "1"}, lo + 5)
        )
    replica = Replica(mirrors.paths.locate_mirror("d", "a"), 30)
    before = replica.version
    assert replica.maintain(join=True)["joined"] == 3
    assert replica.version == before + 1 == replica.find_version_at(30)
    assert replica.read_position() == 30


def _power_cut(*_: object) -> None:
    raise ConnectionAbortedError("power cut")


def test_older_change_never_replaces_a_newer_row(mirrors: Mirrors) -> None:
    # the check of rows works even if the position is lost.
    mirrors.apply(mirrors.plan(0, 20, [], {0: [B]}), change(0, B, "replace", {"id": "2", "w": "8"}, 15))
    replica = Replica(mirrors.paths.locate_mirror("d", "b"), 30)
    old = pa.Table.from_pylist([change(0, B, "replace", {"id": "2", "w": "1"}, 5)], schema=NET)
    replica.merge_keyed(B, old, None)
    assert mirrors.rows(B) == [{"id": "2", "w": "8"}]


def test_columns_may_have_any_name(mirrors: Mirrors) -> None:
    # A capture's column `ev``il"` stopped its mirror, because delta-rs parses the names of a merge.
    names = ["a`b", "c``", 'd"e', "f.g", "h i"]
    cols = [column(1, "id", flag=INT_PK), *(column(n, name) for n, name in enumerate(names, 2))]
    odd = table_def(table_info(3, "odd", cols, pk_is_handle=True), "d")
    for moment, value in ((5, "1"), (6, "2")):
        row: Row = {"id": "7", **dict.fromkeys(names, value)}
        mirrors.apply(
            mirrors.plan(moment * 10, moment * 10 + 9, [], {0: [odd]}), change(0, odd, "replace", row, moment)
        )
        assert mirrors.rows(odd) == [row]


def test_truncate_drop_and_create_again_under_one_name(mirrors: Mirrors) -> None:
    mirrors.apply(mirrors.plan(0, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
    emptied, again = table(3, "b", "id", "w"), table(4, "b", "k")
    ddls = [
        ddl(12, Action.TRUNCATE_TABLE, [B], [emptied]),
        ddl(14, Action.DROP_TABLE, [emptied], []),
        ddl(16, Action.CREATE_TABLE, [], [again]),
    ]
    plan = mirrors.plan(10, 20, ddls, {1: [emptied], 3: [again]})
    mirrors.apply(plan, change(1, emptied, "replace", _w("5"), 13), change(3, again, "replace", {"k": "1"}, 17))
    assert mirrors.rows(again) == [{"k": "1"}]
    assert not mirrors.known["d", "b"].dropped


def test_dropped_partitions_make_a_mirror_inexact_until_it_is_truncated(mirrors: Mirrors) -> None:
    mirrors.apply(mirrors.plan(0, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
    mirrors.apply(mirrors.plan(10, 20, [ddl(15, Action.DROP_PARTITION, [B], [table(2, "b", "id", "w")])], {}))
    assert "partitions" in mirrors.known["d", "b"].inexact
    mirrors.apply(mirrors.plan(20, 30, [ddl(25, Action.TRUNCATE_TABLE, [B], [table(9, "b", "id", "w")])], {}))
    assert mirrors.known["d", "b"].inexact == ""


@pytest.mark.parametrize(
    ("kind", "decided", "left", "inexact"),
    [
        (1, {}, ["7"], ""),
        (4, {}, ["2", "7"], PARTITIONS),  # KEY: not evaluated
        (1, {"decision": "replaced", "sql": "DELETE FROM d.b WHERE id < 5"}, ["7"], ""),
        (1, {"decision": "skip", "reason": SYNC_DDL}, ["7"], ""),
        (1, {"decision": "skip", "reason": EVENTS}, ["2", "7"], PARTITIONS),  # the rows stay at the target too
    ],
)
def test_rows_of_a_removed_partition_are_removed_by_their_values(
    mirrors: Mirrors, kind: int, decided: dict[str, str], left: list[str], inexact: str
) -> None:
    # R-34 S0-64
    mirrors.apply(mirrors.plan(0, 5, [ddl(3, Action.CREATE_TABLE, [], [B])], {}))
    whole, rest = with_partitions(B, kind, 91, 92), with_partitions(B, kind, 93, 92)
    mirrors.apply(mirrors.plan(5, 10, [], {0: [B]}), *(change(0, B, "replace", _w(key), 6) for key in ("2", "7")))
    removal = replace(ddl(15, Action.TRUNCATE_PARTITION, [whole], [rest]), **decided)
    for _ in range(2):  # as after a kill between the rewritten mirror and its record
        mirrors.known["d", "b"] = replace(mirrors.known["d", "b"], inexact="")
        mirrors.apply(mirrors.plan(10, 20, [removal], {}))
        assert [row["id"] for row in mirrors.rows(rest)] == left
        assert mirrors.known["d", "b"].inexact == inexact


def with_partitions(of: TableDef, kind: int, first: int, second: int) -> TableDef:
    ids = [(first, ["5"]), (second, ["MAXVALUE"])]
    listed = [{"id": each, "name": {"O": f"p{each}", "L": f"p{each}"}, "less_than": less} for each, less in ids]
    partition = {"type": kind, "expr": "`id`", "columns": None, "definitions": listed}
    return replace(of, raw={**of.raw, "partition": partition}, partition_ids=(first, second))


def test_table_from_before_the_lake_is_partial_until_it_is_truncated(mirrors: Mirrors) -> None:
    #
    mirrors.apply(mirrors.plan(5, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
    assert mirrors.known["d", "b"].inexact == IN_PART
    # Neither a later window, nor a change of columns, nor a new name replaces the rows that were never seen.
    wider, moved = table(2, "b", "id", "w", "x"), table(2, "c", "id", "w", "x")
    ddls = [ddl(12, Action.ADD_COLUMN, [B], [wider]), ddl(14, Action.RENAME_TABLE, [wider], [moved])]
    mirrors.apply(mirrors.plan(10, 20, ddls, {}))
    assert mirrors.known["d", "c"].inexact == IN_PART
    emptied = table(3, "c", "id", "w", "x")
    mirrors.apply(mirrors.plan(20, 30, [ddl(25, Action.TRUNCATE_TABLE, [moved], [emptied])], {}))
    assert mirrors.known["d", "c"].inexact == ""


@pytest.mark.parametrize("action", [Action.ADD_COLUMN, Action.RENAME_TABLE, Action.DROP_PARTITION])
def test_ddl_as_the_first_event_of_a_table_makes_no_base(mirrors: Mirrors, action: Action) -> None:
    #
    after = table(2, "c" if action == Action.RENAME_TABLE else "b", "id", "w", "x")
    mirrors.apply(mirrors.plan(5, 10, [ddl(6, action, [B], [after])], {}))
    assert mirrors.known["d", after.name].inexact


def test_table_created_inside_the_lake_is_complete(mirrors: Mirrors) -> None:
    created = ddl(6, Action.CREATE_TABLE, [], [B])
    mirrors.apply(mirrors.plan(5, 10, [created], {1: [B]}), change(1, B, "replace", _w("2"), 7))
    assert mirrors.known["d", "b"].inexact == ""


def test_table_renamed_into_the_filter_is_partial(mirrors: Mirrors) -> None:
    # No rows of a filtered name were seen, even if another table had the new name until then.
    mirrors.apply(mirrors.plan(5, 10, [ddl(6, Action.CREATE_TABLE, [], [B])], {}))
    other = table(9, "b", "id", "w")
    mirrors.apply(mirrors.plan(10, 20, [ddl(15, Action.RENAME_TABLES, [B], [other])], {1: [other]}))
    assert mirrors.known["d", "b"].inexact == IN_PART


def test_recovered_table_is_as_partial_as_before(mirrors: Mirrors) -> None:
    mirrors.apply(mirrors.plan(5, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
    ddls = [ddl(12, Action.DROP_TABLE, [B], []), ddl(14, Action.RECOVER_TABLE, [], [B])]
    mirrors.apply(mirrors.plan(10, 20, ddls, {}))
    assert mirrors.known["d", "b"].inexact == IN_PART


def test_swap_of_names_swaps_the_partial_marks(mirrors: Mirrors) -> None:
    #
    c_then, b_then = table(2, "c", "id", "w"), table(3, "b", "id", "v")
    for before, after in (([B, C], [b_then, c_then]), ([C, B], [c_then, b_then])):
        mirrors.known = {}
        mirrors.apply(mirrors.plan(0, 5, [ddl(3, Action.CREATE_TABLE, [], [C])], {}))
        mirrors.apply(mirrors.plan(5, 10, [], {0: [B]}), change(0, B, "replace", _w("2"), 6))
        mirrors.apply(mirrors.plan(10, 20, [ddl(15, Action.RENAME_TABLES, before, after)], {}))
        assert {name: version.inexact for (_, name), version in mirrors.known.items()} == {"b": "", "c": IN_PART}


def test_rename_in_letter_case_only_keeps_the_rows(mirrors: Mirrors) -> None:
    # A mirror's folder has the name as written, so this mirror is copied and the old one is dropped.
    made = mirrors.plan(0, 5, [ddl(3, Action.CREATE_TABLE, [], [B])], {1: [B]})
    mirrors.apply(made, change(1, B, "replace", _w("2"), 4))
    upper = table(2, "B", "id", "w")
    renamed = mirrors.plan(10, 20, [ddl(15, Action.RENAME_TABLE, [B], [upper])], {1: [upper]})
    mirrors.apply(renamed, change(1, upper, "replace", _w("3"), 16))
    assert mirrors.rows(upper) == [_w("2"), _w("3")]
    assert mirrors.known["d", "b"].dropped
    assert (mirrors.known["d", "B"].dropped, mirrors.known["d", "B"].inexact) == (False, "")


def test_tables_linked_by_a_ddl_are_one_component_and_others_are_separate() -> None:
    # a DDL cuts only the tables it touches.
    rename = ddl(5, Action.RENAME_TABLE, [A], [table(1, "c", "id", "v")])
    z = table(8, "z", "id", key=False)
    created = ddl(6, Action.CREATE_TABLE, [], [z])
    definitions = WindowDefinitions(SchemaState(), [ddl(1, Action.CREATE_TABLE, [], [A, B]), rename, created])
    plan = plan_mirrors(1, 10, definitions, [rename, created], [("d", "a"), ("d", "b")], {})
    assert plan.component["d", "a"] == plan.component["d", "c"]
    assert len(set(plan.component.values())) == 3
    starts = {c.number: c.segments.starts for c in plan.components}
    assert starts[plan.component["d", "b"]] == ()
    assert starts[plan.component["d", "a"]] == (5,)
    assert [(c.table, c.segment) for c in plan.cells] == [("a", 0), ("b", 0)]


def test_unique_text_key_survives_a_wider_column(mirrors: Mirrors) -> None:
    def build_keyed(width: int) -> TableDef:
        cols = [column(1, "n", t.VARCHAR, flag=t.FLAG_NOT_NULL, flen=width)]
        return table_def(table_info(5, "u", cols, index_info=[index(1, "uk", [("n", -1)], unique=True)]), "d")

    mirrors.apply(
        mirrors.plan(0, 10, [], {0: [build_keyed(5)]}), change(0, build_keyed(5), "replace", {"n": "a\n\x1f"}, 5)
    )
    version = mirrors.known["d", "u"].delta_version
    mirrors.apply(mirrors.plan(10, 20, [ddl(15, Action.MODIFY_COLUMN, [build_keyed(5)], [build_keyed(9)])], {}))
    assert mirrors.known["d", "u"].delta_version == version
    mirrors.apply(
        mirrors.plan(20, 30, [], {0: [build_keyed(9)]}), change(0, build_keyed(9), "delete", {"n": "a\n\x1f"}, 25)
    )
    assert mirrors.rows(build_keyed(9)) == []


@pytest.mark.parametrize(
    ("sql", "names", "seen"),
    [
        ("ALTER TABLE d.t DROP COLUMN a, ADD COLUMN a INT", {"id": 1, "a": 3}, {"a": None}),
        ("ALTER TABLE d.t DROP a, ADD (a INT)", {"id": 1, "a": 3}, {"a": None}),
        ("ALTER TABLE d.t ADD IF NOT EXISTS `A` INT, DROP a", {"id": 1, "A": 3}, {"A": None}),
        ("ALTER TABLE d.t CHANGE a c INT, ADD a INT", {"id": 1, "c": 2, "a": 3}, {"c": "7", "a": None}),
        ("ALTER TABLE d.t RENAME COLUMN a TO c, ADD a INT", {"id": 1, "c": 2, "a": 3}, {"c": "7", "a": None}),
        ("ALTER TABLE d.t RENAME COLUMN a TO c, ADD x INT", {"id": 1, "c": 2, "x": 3}, {"c": "7", "x": None}),
        ("ALTER TABLE d.t ADD COLUMN a INT", {"id": 1, "a": 3}, {"a": "7"}),  # of the second of two shards
        ("ALTER TABLE d.t MODIFY a BIGINT, ADD INDEX a (a)", {"id": 1, "a": 3}, {"a": "7"}),
        ("ALTER TABLE d.t CHANGE COLUMN a c BIGINT", {"id": 1, "c": 3}, {"c": "7"}),
    ],
)
def test_column_added_under_a_former_name_has_no_old_values(
    mirrors: Mirrors, sql: str, names: dict[str, int], seen: Row
) -> None:
    # TiDB gives a converted column another id under the same name; so a name alone does not show which case it is.
    before, after = (
        table_def(
            table_info(9, "t", [column(n, c, flag=INT_PK * (n == 1)) for c, n in ids.items()], pk_is_handle=True), "d"
        )
        for ids in ({"id": 1, "a": 2}, names)
    )
    mirrors.apply(mirrors.plan(0, 10, [], {0: [before]}), change(0, before, "replace", {"id": "1", "a": "7"}, 6))
    altered = replace(ddl(15, Action.MULTI_SCHEMA_CHANGE, [before], [after]), sql=sql)
    mirrors.apply(mirrors.plan(10, 20, [altered], {}))
    assert mirrors.rows(after) == [{"id": "1"} | seen]


@pytest.mark.parametrize(
    ("stored", "reasons"),
    [(True, ["", "a stored generated column was added or computed anew"]), (False, [""])],
    ids=["stored", "virtual"],
)
def test_stored_generated_column_makes_older_rows_inexact(stored: bool, reasons: list[str]) -> None:
    made = {**column(2, "g"), "generated_expr_string": "`id` + 1", "generated_stored": stored}
    columns = [column(1, "id", flag=INT_PK)]
    before, after = (
        table_def(table_info(9, "t", list(some), pk_is_handle=True), "d") for some in (columns, [*columns, made])
    )
    effects = derive_effects(replace(ddl(15, Action.ADD_COLUMN, [before], [after]), sql="ALTER TABLE d.t ADD g INT"))
    assert [effect.kind for effect in effects] == ["alter", "inexact"][: len(reasons)]
    assert [effect.reason.partition(",")[0] for effect in effects] == reasons


def _build_table(kind: int) -> TableDef:
    cols = [column(1, "id", flag=INT_PK), column(2, "v", kind)]
    return table_def(table_info(7, "times", cols, pk_is_handle=True), "d")


@pytest.mark.parametrize(
    ("zone", "seen", "why"),
    [("America/New_York", "2021-11-07 01:30:00", ""), ("", "2021-11-07 05:30:00", "time zone")],
)
def test_timestamp_becomes_datetime_in_the_sessions_zone_or_the_mirror_is_inexact(
    mirrors: Mirrors, zone: str, seen: str, why: str
) -> None:
    #
    before, after = _build_table(t.TIMESTAMP), _build_table(t.DATETIME)
    row = {"id": "1", "v": "2021-11-07 05:30:00"}
    mirrors.apply(mirrors.plan(0, 10, [], {0: [before]}), change(0, before, "replace", row, 6))
    modify = ddl(15, Action.MODIFY_COLUMN, [before], [after])
    modify = replace(modify, after=replace(modify.after, session=SourceSession(zone)))
    known = dict(mirrors.known)
    mirrors.apply(mirrors.plan(10, 20, [modify], {}))
    assert mirrors.rows(after) == [{"id": "1", "v": seen}]
    assert why in mirrors.known["d", "times"].inexact
    # A run that died before it recorded its finding makes the same finding again.
    found, mirrors.known = mirrors.known, known
    mirrors.apply(mirrors.plan(10, 20, [modify], {}))
    assert mirrors.known["d", "times"].inexact == found["d", "times"].inexact


def base(plan: ComponentPlan) -> ComponentPlan:
    """The same window, whose rows are of a full load only."""
    return replace(plan, is_base=True)


def operations(mirrors: Mirrors, of: TableDef) -> list[str]:
    """Of each version, the newest first."""
    return [str(one["operation"]) for one in DeltaTable(mirrors.paths.locate_mirror(of.db, of.name)).history()]


def loaded(first: int, count: int = 3) -> list[dict[str, Any]]:
    return [change(0, B, "replace", _w(str(n)), 6) for n in range(first, first + count)]


def test_parts_of_a_full_load_are_added_once_each(mirrors: Mirrors) -> None:
    #
    created = [ddl(5, Action.CREATE_TABLE, [], [B])]
    first = base(mirrors.plan(0, 10, created, {1: [B]}))
    parts = [base(mirrors.plan(10 * n, 10 * n + 10, [], {0: [B]})) for n in (1, 2)]
    for _ in range(2):
        mirrors.apply(first, *(one | {"segment": 1} for one in loaded(1)))
        for number, part in enumerate(parts, 1):
            for _ in range(2):
                mirrors.apply(part, *loaded(10 * number))
    assert [row["id"] for row in mirrors.rows(B)] == ["1", "10", "11", "12", "2", "20", "21", "22", "3"]
    assert "MERGE" not in operations(mirrors, B)


def test_a_load_into_a_mirror_that_has_other_rows_is_merged(mirrors: Mirrors) -> None:
    """Such as one that goes on after a change of what was loaded before: then a key may be there."""
    mirrors.apply(base(mirrors.plan(0, 10, [], {0: [B]})), *loaded(1))
    mirrors.apply(mirrors.plan(10, 20, [], {0: [B]}), change(0, B, "replace", {"id": "1", "w": "8"}, 15))
    mirrors.apply(base(mirrors.plan(20, 30, [], {0: [B]})), *(one | {"last_commit_ts": 25} for one in loaded(3)))
    assert mirrors.rows(B) == [{"id": "1", "w": "8"}, *(_w(key) for key in "2345")]
    assert operations(mirrors, B)[:2] == ["MERGE", "MERGE"]


def test_a_full_load_goes_on_after_small_files_were_joined(mirrors: Mirrors) -> None:
    mirrors.apply(base(mirrors.plan(0, 10, [], {0: [B]})), *loaded(1))
    mirrors.apply(base(mirrors.plan(10, 20, [], {0: [B]})), *loaded(11))
    assert Replica(mirrors.paths.locate_mirror("d", "b"), 30).maintain(join=True)["joined"] == 2
    mirrors.apply(base(mirrors.plan(20, 30, [], {0: [B]})), *loaded(21))
    assert operations(mirrors, B)[:2] == ["WRITE", "OPTIMIZE"]
    assert len(mirrors.rows(B)) == 9


def test_a_full_load_whose_commit_failed_is_added_by_the_next_run(
    mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = base(mirrors.plan(0, 10, [], {0: [B]}))
    with monkeypatch.context() as patch:
        patch.setattr("binlake.mirror.replica._build_rows", _fail)
        with pytest.raises(OSError, match="power cut"):
            mirrors.apply(plan, *loaded(1))
    assert mirrors.rows(B) == []
    mirrors.apply(plan, *loaded(1))
    assert mirrors.rows(B) == [_w(key) for key in "123"]


def _fail(*_: object) -> Any:
    raise OSError("power cut")
