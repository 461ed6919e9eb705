"""Rows of dropped and truncated partitions, and second writes of REORGANIZE PARTITION, as TiDB logs them."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import pytest
from codec_tables import each, ints
from support.tidb_json import column, db_info, index, job, name, table_info

from binlake.errors import SchemaError
from binlake.rows.codec import MutationBatch, MutationBuilder, encode_prewrite_value
from binlake.rows.schema import Action, SchemaState, WindowDdl, WindowSchemas
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.partitions import find_partition
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

Row = dict[str, Any]
OLD, NEXT, FRESH, OTHER = 101, 102, 201, 301


def parts(*bounds: tuple[int, str], kind: int = 1, expr: str = "`d`") -> Row:
    listed = [{"id": i, "name": name(f"p{i}"), "less_than": [bound], "in_values": None} for i, bound in bounds]
    return {"type": kind, "expr": expr, "columns": None, "definitions": listed}


def plain(table_id: int, named: str, **more: Any) -> Row:
    cols = [column(1, "id", flag=t.FLAG_NOT_NULL), column(2, "d", flag=t.FLAG_NOT_NULL)]
    keys = [index(1, "PRIMARY", [("id", -1), ("d", -1)], unique=True, primary=True)]
    return table_info(table_id, named, cols, index_info=keys, **more)


def info(partition: Row, **more: Any) -> Row:
    return plain(10, "t", partition=partition, **more)


BEFORE = parts((OLD, "100"), (NEXT, "MAXVALUE"))
DROPPED, EMPTIED = parts((NEXT, "MAXVALUE")), parts((FRESH, "100"), (NEXT, "MAXVALUE"))


def schemas(action: Action, partition: Row, before: Row = BEFORE) -> WindowSchemas:
    """A DDL at 100 that began at 60, of version 8; the table exists since version 4."""
    made = [
        job(Action.CREATE_SCHEMA, 2, db=db_info(2, "test")),
        job(Action.CREATE_TABLE, 3, info=plain(OTHER, "o")),
        job(Action.CREATE_TABLE, 4, info=info(before)),
    ]
    base = SchemaState().fold((0, one) for one in made)
    ddl = WindowDdl(100, 90, 1008, 5, "ALTER TABLE t", job(action, 8, info=info(partition), real_start_ts=60))
    return WindowSchemas(base, [ddl])


def key_of(table_id: int) -> bytes:
    return b"t" + (table_id + (1 << 63)).to_bytes(8, "big") + b"_r" + bytes(8)


def decoded(
    found: WindowSchemas,
    commit_ts: int,
    version: int,
    physical: int,
    changes: Sequence[tuple[str, Any]],
    others: int = 0,
) -> list[tuple[str, Row | None, Row | None]]:
    table = found.find_schema_of_segment(0).find_table(10)
    assert table is not None
    builder = MutationBuilder(table)
    for op, rows in changes:
        getattr(builder, op)(*rows)
    message = pb.PrewriteValue.FromString(encode_prewrite_value(version, [builder.message] * (1 + others)))
    for other in message.mutations[1:]:
        other.table_id = OTHER
    binlog = build.build_prewrite(commit_ts - 1, key_of(physical), message.SerializeToString()).SerializeToString()
    together = []
    for add in ("add", "add_all"):
        batch = MutationBatch()
        if add == "add":
            batch.add(binlog, commit_ts, commit_ts - 1, found.find_schema_at(commit_ts))
        else:
            batch.add_all([binlog], ints(commit_ts), ints(commit_ts - 1), each(found.find_schema_at))
        together.append([(r["op"], r["before"], r["after"]) for r in batch.take().to_pylist(maps_as_pydicts="strict")])
    assert together[0] == together[1]
    return together[0]


def row(number: int, d: int) -> Row:
    return {"id": str(number), "d": str(d)}


# -- into which partition the transaction wrote ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commit_ts", "version", "physical", "left"),
    [
        (90, 5, OLD, []),  # older version, written into the partition: removed with it
        (110, 5, OLD, []),
        (90, 5, NEXT, ["insert"]),  # began earlier, but used the table as it was after the DDL's first step
        (90, 6, OLD, ["insert"]),  # a version at which no transaction writes into the partition
        (59, 5, OLD, ["insert"]),  # before the DDL began: the target's DROP PARTITION removes it
    ],
)
def test_row_written_into_dropped_partition_is_removed(
    commit_ts: int, version: int, physical: int, left: list[str]
) -> None:  # issue 13 point 5, capture zones table Teile
    rows = decoded(schemas(Action.DROP_PARTITION, DROPPED), commit_ts, version, physical, [("insert", (row(1, 50),))])
    assert [op for op, _, _ in rows] == left


@pytest.mark.parametrize(("physical", "left"), [(OLD, 0), (FRESH, 1)])
def test_row_after_truncate_partition_stays_if_written_into_new_partition(physical: int, left: int) -> None:
    found = schemas(Action.TRUNCATE_PARTITION, EMPTIED)
    assert len(decoded(found, 130, 7, physical, [("insert", (row(1, 50),))])) == left
    assert len(decoded(found, 130, 8, physical, [("insert", (row(1, 50),))])) == 1
    assert len(decoded(found, 99, 7, physical, [("insert", (row(1, 50),))])) == 1


def test_update_between_partitions_keeps_the_remaining_side() -> None:
    found = schemas(Action.TRUNCATE_PARTITION, EMPTIED)
    inside, outside, other = row(1, 50), row(1, 150), row(1, 60)
    rows = decoded(found, 130, 7, OLD, [("update", (inside, outside))])
    assert rows == [("insert", None, outside)]
    assert decoded(found, 130, 7, OLD, [("update", (outside, inside))]) == [("delete", outside, None)]
    assert decoded(found, 130, 7, OLD, [("update", (inside, other)), ("delete", (other,))]) == []
    assert len(decoded(found, 130, 7, OLD, [("update", (row(2, 150), row(2, 151)))])) == 1


def test_row_that_no_other_partition_takes_was_in_the_dropped_one() -> None:
    last = parts((OLD, "100"))
    found = schemas(Action.DROP_PARTITION, last)
    changes = [("insert", (row(1, 150),)), ("insert", (row(2, 50),))]
    assert [after for _, _, after in decoded(found, 90, 5, OLD, changes)] == [row(2, 50)]


@pytest.mark.parametrize(
    ("physical", "changes", "others"),
    [
        (NEXT, [("insert", (row(1, 50),)), ("insert", (row(2, 150),))], 0),
        (OTHER, [("insert", (row(1, 50),))], 1),
        (999, [("insert", (row(1, 50),))], 0),
    ],
)
def test_undetermined_rows_are_refused(physical: int, changes: list[tuple[str, Any]], others: int) -> None:
    with pytest.raises(SchemaError, match=r"whether it was removed.*table=test\.t commit_ts=90.*ignore-txn-commit-ts"):
        decoded(schemas(Action.DROP_PARTITION, DROPPED), 90, 5, physical, changes, others)


THREE = parts((OLD, "100"), (NEXT, "200"), (103, "MAXVALUE"))
FEWER = parts((NEXT, "200"), (103, "MAXVALUE"))


@pytest.mark.parametrize(
    ("partition", "physical", "changes", "others", "left"),
    [
        # Another table's change says nothing; only NEXT as it is after the DDL has a row of this table.
        (DROPPED, NEXT, [("insert", (row(1, 50),))], 1, ["1"]),
        (DROPPED, OLD, [("insert", (row(1, 50),)), ("insert", (row(2, 150),))], 1, ["2"]),
        # Before the DDL no row is in NEXT, after it row 1: the transaction used the table as it is after the DDL.
        (FEWER, NEXT, [("insert", (row(1, 50),)), ("insert", (row(2, 250),))], 0, ["1", "2"]),
        # Row 2 is in its partition before and after the DDL.
        (FEWER, 103, [("insert", (row(1, 50),)), ("insert", (row(2, 250),))], 0, None),
        (EMPTIED, FRESH, [("insert", (row(1, 50),)), ("insert", (row(2, 150),))], 0, ["1", "2"]),
    ],
)  # fmt: skip
def test_the_partition_of_one_row_tells_which_state_of_the_table_a_transaction_used(
    partition: Row, physical: int, changes: list[tuple[str, Any]], others: int, left: list[str] | None
) -> None:
    before = THREE if 103 in [one["id"] for one in partition["definitions"]] else BEFORE
    action = Action.TRUNCATE_PARTITION if partition is EMPTIED else Action.DROP_PARTITION
    found = schemas(action, partition, before)
    at = 130 if action is Action.TRUNCATE_PARTITION else 90
    if left is None:
        with pytest.raises(SchemaError, match="whether it was removed"):
            decoded(found, at, 5, physical, changes, others)
        return
    rows = decoded(found, at, 5, physical, changes, others)
    kept = [image["id"] for _, _, image in rows if image is not None]
    assert kept[: len(kept) - others * len(changes)] == left


def test_rows_in_doubt_go_with_their_partition_if_configured_so() -> None:
    # S0-60: a way on, counted by table, for partitionings that are not evaluated too
    changes = [("insert", (row(1, 50),)), ("insert", (row(2, 150),))]
    for before, after, left in (
        (BEFORE, DROPPED, ["2"]),
        (
            parts((OLD, "100"), (NEXT, "MAXVALUE"), expr="`d` + 1"),
            parts((NEXT, "MAXVALUE"), expr="`d` + 1"),
            ["1", "2"],
        ),
    ):
        batch = MutationBatch(partition_rows="removed")
        found = schemas(Action.DROP_PARTITION, after, before)
        table = found.find_schema_of_segment(0).find_table(10)
        assert table is not None
        builder = MutationBuilder(table)
        for op, rows in changes:
            getattr(builder, op)(*rows)
        value = encode_prewrite_value(5, [builder.message])
        binlog = build.build_prewrite(89, key_of(NEXT), value).SerializeToString()
        batch.add(binlog, 90, 89, found.find_schema_at(90))
        kept = batch.take().to_pylist(maps_as_pydicts="strict")
        assert [one["after"]["id"] for one in kept] == left
        assert batch.stats.taken_away == {"test.t": 1}
        with pytest.raises(SchemaError, match=r"source\.partition-rows = removed"):
            decoded(found, 90, 5, NEXT, changes)


def test_snapshot_keeps_emptied_partitions_until_the_next_ddl() -> None:
    state = schemas(Action.TRUNCATE_PARTITION, EMPTIED).find_schema_of_segment(1)
    again = SchemaState.from_rows(state.to_rows()).find_table(10)
    assert again is not None
    assert again.emptied == state.find_table(10).emptied is not None  # type: ignore[union-attr]
    later = state.apply(job(Action.ADD_COLUMN, 9, info=info(EMPTIED))).find_table(10)
    assert later is not None
    assert later.emptied is None


# -- exchanged partitions -------------------------------------------------------------------------------------------

# Binlogs of capture `zones` around the EXCHANGE PARTITION at 470640494088814602 (version 925): the one of partition 502
# of table Monat (500) and the plain table Tausch (505).
EXCHANGED_AT = 470640494088814602
INTO_THE_OLD = (
    "0800108c80d0d892a183c4061800221d7480000000000001f65f7203800000000000009103800000000000000f"
    "2a18089c07121308f403120c08a202081e08060206723132380038004000"
)
BY_THE_FORMER_ID = (
    "0800108b80d0d892a183c4061800221d7480000000000001f95f72038000000000000088038000000000000010"
    "2a18089c07121308f903120c089002082008060206653133380038004000"
)
INTO_ANOTHER = (
    "0800108680a0de92a183c4061800221d7480000000000001f75f7203800000000000007903800000000000001b"
    "2a18089c07121308f403120c08f201083608060206723133380038004000"
)
OF_THE_NEW_VERSION = (
    "0800108580d0e392a183c4061800221d7480000000000001f65f72038000000000000085038000000000000010"
    "2a18089d07121308f603120c088a02082008060206653133380038004000"
)


def exchanged(**tausch: Any) -> SchemaState:
    def monat(second: int) -> Row:
        return {"partition": parts((501, "10"), (second, "20"), (503, "30"))}

    jobs = [
        job(Action.CREATE_SCHEMA, 921, db=db_info(2, "app")),
        job(Action.CREATE_TABLE, 922, info=with_text(500, "Monat", **monat(502))),
        job(Action.CREATE_TABLE, 923, info=with_text(505, "Tausch", **tausch)),
        job(Action.EXCHANGE_PARTITION, 925, info=with_text(500, "Monat", **monat(505)), table_id=505),
    ]
    return SchemaState().fold((0, one) for one in jobs)


def with_text(table_id: int, named: str, text: str = "v", **more: Any) -> Row:
    made = plain(table_id, named, is_common_handle=True, **more)
    return {**made, "cols": [*made["cols"], column(3, text, t.VARCHAR, charset="utf8mb4", collate="utf8mb4_bin")]}


def of_binlog(
    payload: bytes, state: SchemaState, batch: MutationBatch | None = None
) -> list[tuple[int, str, str, str, str]]:
    batch = MutationBatch() if batch is None else batch
    start_ts = pb.Binlog.FromString(payload).start_ts
    batch.add_all([payload], ints(EXCHANGED_AT + 9), ints(start_ts), each(lambda _: state))
    rows = batch.take().to_pylist(maps_as_pydicts="strict")
    return [(r["table_id"], r["source_table"], r["table"], r["op"], (r["after"] or r["before"])["id"]) for r in rows]


@pytest.mark.parametrize(
    ("binlog", "expected"),
    [
        (INTO_THE_OLD, (502, "Tausch", "Tausch", "insert", "145")),  # logged under the id of Monat
        (BY_THE_FORMER_ID, (500, "Monat", "Monat", "insert", "136")),  # logged under the id of Tausch
        (INTO_ANOTHER, (500, "Monat", "Monat", "insert", "121")),
        (OF_THE_NEW_VERSION, (502, "Tausch", "Tausch", "insert", "133")),
    ],
)
def test_late_row_moves_with_the_exchanged_partition(
    binlog: str, expected: tuple[int, str, str, str, str]
) -> None:  # issue 13 point 5, capture zones table Monat
    state = exchanged()
    assert of_binlog(bytes.fromhex(binlog), state) == [expected]
    assert of_binlog(bytes.fromhex(binlog), SchemaState.from_rows(state.to_rows())) == [expected]


def late_changes(physical: int, changes: Sequence[tuple[str, Any]], *others: int) -> bytes:
    table = exchanged().find_table(500)
    assert table is not None
    builder = MutationBuilder(table)
    for op, rows in changes:
        getattr(builder, op)(*rows)
    message = pb.PrewriteValue.FromString(encode_prewrite_value(924, [builder.message] * (1 + len(others))))
    for mutation, table_id in zip(message.mutations[1:], others, strict=True):
        mutation.table_id = table_id
    return build.build_prewrite(EXCHANGED_AT - 9, key_of(physical), message.SerializeToString()).SerializeToString()


def test_update_out_of_exchanged_partition_changes_both_tables() -> None:
    inside, outside = {**row(1, 15), "v": "x"}, {**row(2, 25), "v": "x"}
    out = late_changes(502, [("update", (inside, outside))])
    assert of_binlog(out, exchanged()) == [
        (500, "Monat", "Monat", "insert", "2"),
        (502, "Tausch", "Tausch", "delete", "1"),
    ]
    back = late_changes(502, [("update", (outside, inside))])
    assert of_binlog(back, exchanged()) == [
        (500, "Monat", "Monat", "delete", "2"),
        (502, "Tausch", "Tausch", "insert", "1"),
    ]
    within = late_changes(502, [("update", (inside, {**inside, "v": "y"}))])
    assert of_binlog(within, exchanged()) == [(502, "Tausch", "Tausch", "update", "1")]


@pytest.mark.parametrize(("physical", "other"), [(502, 502), (505, 505), (503, 505)])
def test_ambiguous_prewrite_key_is_refused(physical: int, other: int) -> None:
    change = [("insert", ({**row(1, 15), "v": "x"},))]
    with pytest.raises(SchemaError, match=r"whether it was removed.*table=app\.Monat.*ignore-txn-commit-ts"):
        of_binlog(late_changes(physical, change, other), exchanged())


def test_late_row_of_exchange_is_refused_if_filters_or_columns_differ() -> None:
    payload = bytes.fromhex(INTO_THE_OLD)
    for kept in ("Monat", "Tausch"):
        batch = MutationBatch(lambda table, kept=kept: (table.db, table.name) if table.name == kept else None)  # type: ignore[misc]
        with pytest.raises(SchemaError, match=r"other filters.*other=app\.Tausch.*ignore-txn-commit-ts"):
            of_binlog(payload, exchanged(), batch)
    assert of_binlog(payload, exchanged(), MutationBatch(lambda _: None)) == []
    with pytest.raises(SchemaError, match="other columns or another key"):
        of_binlog(payload, exchanged(text="V"))


# -- which partition ------------------------------------------------------------------------------------------------

_TYPES = {"d": t.LONG, "day": t.DATE, "at": t.TIMESTAMP, "txt": t.VARCHAR}


@pytest.mark.parametrize(
    ("partition", "value", "found"),
    [
        (parts((1, "10"), (2, "20")), {"d": "-5"}, 1),
        (parts((1, "10"), (2, "20")), {"d": "10"}, 2),
        (parts((1, "10"), (2, "20")), {"d": "20"}, 0),
        (parts((1, "10"), (2, "MAXVALUE")), {"d": None}, 1),
        (parts((1, "2021"), (2, "2022"), expr="YEAR(`day`)"), {"day": "2021-01-01"}, 2),
        (parts((1, "738156"), (2, "738157"), expr="TO_DAYS(`day`)"), {"day": "2021-01-01"}, 2),
        (parts((1, "1609459200"), (2, "MAXVALUE"), expr="UNIX_TIMESTAMP(`at`)"), {"at": "2020-12-31 23:59:59"}, 1),
        (parts((1, "1609459200"), (2, "MAXVALUE"), expr="UNIX_TIMESTAMP(`at`)"), {"at": "2021-01-01 00:00:00"}, 2),
        (parts((1, ""), (2, ""), (3, ""), kind=2), {"d": "-4"}, 2),
        (parts((1, "'2021-01-01'"), (2, "MAXVALUE")) | {"columns": [name("day")]}, {"day": "2020-06-01"}, 1),
        ({"type": 3, "expr": "`d`", "columns": None, "definitions": [
            {"id": 1, "in_values": [["1"], ["NULL"]]}, {"id": 2, "in_values": [["2"]]}]}, {"d": None}, 1),
        ({"type": 3, "expr": "`d`", "columns": None, "definitions": [
            {"id": 1, "in_values": [["1"]]}, {"id": 2, "in_values": [["DEFAULT"]]}]}, {"d": "7"}, 2),
    ],
)  # fmt: skip
def test_partition_of_a_row(partition: Row, value: dict[str, str | None], found: int) -> None:
    assert find_partition(partition, value, _TYPES) == found


@pytest.mark.parametrize(
    "partition",
    [
        parts((1, "10"), expr="`d` + 1"),
        parts((1, "10"), kind=4),
        parts((1, "'m'")) | {"expr": "", "columns": [name("txt")]},
        parts((1, "10"), expr="UNIX_TIMESTAMP(`day`)"),
    ],
)
def test_unsupported_partitioning_is_refused(partition: Row) -> None:
    with pytest.raises(SchemaError, match="may have been removed with a dropped"):
        find_partition(partition, {"d": "1", "day": "2021-01-01", "at": None, "txt": "a"}, _TYPES)


def test_error_of_a_partition_has_no_value_of_the_row() -> None:
    value = "2021-1-01"
    with pytest.raises(SchemaError) as refused:
        find_partition(parts((1, "2021"), expr="YEAR(`day`)"), {"day": value}, _TYPES)
    assert value not in "".join(traceback.format_exception(refused.value))


# -- second writes ----------------------------------------------------------------------------------------------------


def test_second_writes_of_reorganized_partition_are_removed() -> None:  # capture zones, table Teile
    found = schemas(Action.TRUNCATE_PARTITION, EMPTIED)
    a, b, c = row(1, 50), row(2, 150), row(2, 151)
    twice = [("insert", (a,)), ("insert", (a,)), ("update", (b, c)), ("update", (b, c)), ("delete", (c,)),
             ("delete", (c,))]  # fmt: skip
    assert [op for op, _, _ in decoded(found, 50, 5, OLD, twice)] == ["insert", "update", "delete"]
    # In the delete-only step the second write deletes the former row.
    assert [op for op, _, _ in decoded(found, 50, 5, OLD, [("update", (b, c)), ("delete", (b,))])] == ["update"]
    assert [op for op, _, _ in decoded(found, 50, 5, OLD, [("update", (a, b)), ("delete", (b,))])] == [
        "update",
        "delete",
    ]
    swap = [("delete", (a,)), ("insert", (a,)), ("delete", (a,))]
    assert [op for op, _, _ in decoded(found, 50, 5, OLD, swap)] == ["delete", "insert", "delete"]


def test_second_writes_are_removed_when_a_table_gets_its_first_partitions() -> None:
    made = [job(Action.CREATE_SCHEMA, 2, db=db_info(2, "test")), job(Action.CREATE_TABLE, 4, info=plain(10, "t"))]
    found = WindowSchemas(SchemaState().fold((0, one) for one in made), [])
    a, b, c = row(1, 50), row(2, 150), row(2, 151)
    # If the changes stayed as logged, the row would be lost.
    assert [op for op, _, _ in decoded(found, 50, 5, 10, [("update", (b, c)), ("delete", (b,))])] == ["update"]
    twice = [("insert", (a,)), ("insert", (a,)), ("update", (b, c)), ("update", (b, c)), ("delete", (c,)),
             ("delete", (c,))]  # fmt: skip
    assert [op for op, _, _ in decoded(found, 50, 5, 10, twice)] == ["insert", "update", "delete"]
    real = [("insert", (b,)), ("update", (b, c)), ("update", (c, b)), ("delete", (b,)), ("insert", (b,))]
    assert len(decoded(found, 50, 5, 10, real)) == len(real)
