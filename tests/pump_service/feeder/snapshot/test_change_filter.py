"""Changes between two snapshots, reduced to the rows that the earlier one has read: random, and decoded again."""

from __future__ import annotations

from random import Random

import pytest
from support.examples import seeds
from support.tidb_json import INT_PK, column, index, table_def, table_info

from binlake.pump_service.feeder.snapshot.changefilter import PartlyReadTable, filter_read_rows, iterate_changed_keys
from binlake.rows.codec import MutationBuilder, decode_transaction, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.datum import write_int
from binlake.rows.codec.values import skip
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import binlog_pb2 as pb

Row = dict[str, str | None]
Change = tuple[int, str, Row | None, Row | None]
NUMBER = table_def(
    table_info(
        1,
        "number",
        [column(1, "id", t.LONGLONG, flag=INT_PK | t.FLAG_UNSIGNED), column(2, "v", t.VARCHAR, flen=9)],
        pk_is_handle=True,
    )
)
WORD = table_def(
    table_info(
        2,
        "word",
        [column(1, "n"), column(2, "id", t.VARCHAR, flen=20, flag=t.FLAG_NOT_NULL), column(3, "v", t.VARCHAR, flen=9)],
        index_info=[index(1, "PRIMARY", [("id", -1)], unique=True, primary=True)],
    )
)
WHOLE = table_def(table_info(3, "whole", [column(1, "id"), column(2, "v", t.VARCHAR, flen=9)]))
TABLES = {table.id: table for table in (NUMBER, WORD, WHOLE)}
KEYS = {1: ["0", "7", str((1 << 63) - 1), str(1 << 63), str((1 << 64) - 1)], 2: ["", "a", "bé", "c'"], 3: ["1", "2"]}


class _Tables:
    def find_table(self, table_id: int) -> TableDef | None:
        return TABLES.get(table_id)


def part(table: TableDef) -> PartlyReadTable:
    column = table.find_column("id")
    assert column is not None
    return PartlyReadTable(table, column)


PARTS = {table.id: part(table) for table in (NUMBER, WORD)}


def drawn_row(draw: Random, table_id: int) -> Row:
    more = {"n": draw.choice([None, "5"])} if table_id == 2 else {}
    return {**more, "id": draw.choice(KEYS[table_id]), "v": draw.choice([None, "", "x"])}


def drawn_changes(draw: Random) -> list[Change]:
    changes: list[Change] = []
    for table_id in draw.sample(list(TABLES), draw.randint(1, 3)):
        for _ in range(draw.randint(1, 5)):
            kind = draw.choice(["insert", "update", "delete"])
            before = drawn_row(draw, table_id) if kind != "insert" else None
            after = drawn_row(draw, table_id) if kind != "delete" else None
            changes.append((table_id, kind, before, after))
    return changes


def written(changes: list[Change]) -> pb.PrewriteValue:
    builders: dict[int, MutationBuilder] = {}
    for number, (table_id, kind, before, after) in enumerate(changes):
        builder = builders.setdefault(table_id, MutationBuilder(TABLES[table_id]))
        getattr(builder, kind)(*(row for row in (before, after) if row is not None), number)
    return pb.PrewriteValue.FromString(encode_prewrite_value(9, [builder.message for builder in builders.values()]))


def read_back(value: bytes) -> list[Change]:
    if not value:
        return []
    assert pb.PrewriteValue.FromString(value).schema_version == 9
    changes = decode_transaction(encode_commit_binlog(1, 2, b"k", value), 2, 1, _Tables())
    return [(change.table_id, change.op, change.before, change.after) for change in changes]


def wanted(change: Change, read: dict[int, set[str]]) -> Change | None:
    table_id, _, before, after = change
    if table_id not in PARTS:
        return change
    was, now = (row if row is not None and row["id"] in read[table_id] else None for row in (before, after))
    if was is None and now is None:
        return None
    return table_id, "insert" if was is None else "delete" if now is None else "update", was, now


@pytest.mark.parametrize("seed", seeds(60))
def test_changes_of_rows_in_range_keep_their_order(seed: int) -> None:  # S4-24
    draw = Random(seed)
    changes = drawn_changes(draw)
    read = {table_id: {key for key in KEYS[table_id] if draw.random() < 0.5} for table_id in PARTS}
    is_read = {table_id: keys.__contains__ for table_id, keys in read.items()}
    filtered = filter_read_rows(written(changes), PARTS, is_read)
    assert read_back(filtered) == [left for left in (wanted(change, read) for change in changes) if left is not None]
    # A table without changes has no mutation.
    assert all(mutation.sequence for mutation in pb.PrewriteValue.FromString(filtered).mutations)


@pytest.mark.parametrize("seed", seeds(10))
def test_both_keys_of_each_change_are_read(seed: int) -> None:
    changes = drawn_changes(Random(f"keys {seed}"))
    keys = [
        (table_id, str(row["id"]))
        for table_id, _, before, after in changes
        for row in (before, after)
        if row is not None and table_id in PARTS
    ]
    assert list(iterate_changed_keys(written(changes), PARTS)) == keys


def test_rows_without_a_handle_get_one() -> None:
    moved: list[Change] = [
        (2, "update", {"n": None, "id": "away", "v": None}, {"n": "1", "id": word, "v": "x"}) for word in ("a", "b")
    ]
    filtered = filter_read_rows(written(moved), PARTS, {1: lambda _: False, 2: {"a", "b"}.__contains__})
    inserted = pb.PrewriteValue.FromString(filtered).mutations[0].inserted_rows
    handles = [write_int((1 << 40) + number) for number in range(2)]
    assert [row.startswith(handle) for row, handle in zip(inserted, handles, strict=True)] == [True, True]


@pytest.mark.parametrize("key", KEYS[1])
def test_a_clustered_row_includes_its_key(key: str) -> None:
    moved: list[Change] = [(1, "update", {"id": "9", "v": None}, {"id": key, "v": "x"})]
    filtered = filter_read_rows(written(moved), PARTS, {1: {key}.__contains__, 2: lambda _: False})
    [inserted] = pb.PrewriteValue.FromString(filtered).mutations[0].inserted_rows
    [as_written] = MutationBuilder(NUMBER).insert({"id": key, "v": "x"}).message.inserted_rows
    assert as_written.startswith(inserted[: skip(inserted, 0)])
