"""A block of columns gives the same rows as the inserts whose place it takes, and anything else gives one error."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from codec_tables import RandomTable, Row, damaged, random_table
from support.tidb_json import Tables, article_table

from binlake.errors import SchemaError, WireError
from binlake.rows.codec import MutationBatch, decode_transaction, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.columnblocks import MARK, encode_column_block, find_column_blocks
from binlake.rows.codec.encode import RowEncoder
from binlake.rows.codec.tabledecoder import TableDecoder
from binlake.rows.codec.transaction import ROW_ERRORS
from binlake.rows.schema import TableDef
from binlake.tso import compose
from binlake.wire import binlog_pb2 as pb

COMMIT = compose(1_700_000_000_000, 3)


def binlog(mutation: pb.TableMutation) -> bytes:
    return encode_commit_binlog(COMMIT - 1, COMMIT, b"k", encode_prewrite_value(9, [mutation]))


def block_of(table: TableDef, rows: list[Row]) -> bytes:
    names = {column.id: column.name for column in table.row_columns}
    return encode_column_block({i: pa.array([row[name] for row in rows], pa.string()) for i, name in names.items()})


def as_block(table: TableDef, rows: list[Row]) -> bytes:
    block = block_of(table, rows)
    return binlog(pb.TableMutation(table_id=table.id, inserted_rows=[block], sequence=[pb.Insert]))


def as_rows(table: TableDef, rows: list[Row]) -> bytes:
    encoder = RowEncoder(table)
    mutation = pb.TableMutation(table_id=table.id)
    for number, row in enumerate(rows):
        mutation.inserted_rows.append(encoder.insert(row, number))
        mutation.sequence.append(pb.Insert)
    return binlog(mutation)


def drawn(seed: int) -> tuple[Random, RandomTable, list[Row]]:
    """Rows as a table holds them: each key once."""
    draw = Random(seed)
    table = random_table(draw)
    while not table.definition.row_columns:
        table = random_table(draw)
    rows = [table.row(draw) for _ in range(draw.choice([1, 7, 300]))]
    identity = table.definition.find_identity()
    if identity.kind != "row":
        rows = list({tuple(row[name] for name in identity.columns): row for row in rows}.values())
    return draw, table, rows


def read(payload: bytes, *tables: TableDef, gone: tuple[int, ...] = (), **settings: object) -> tuple[list[dict], MutationBatch]:  # type: ignore[type-arg]  # fmt: skip  # noqa: E501
    batch = MutationBatch(**settings)  # type: ignore[arg-type]
    [(_, value)] = find_column_blocks(pa.array([payload], pa.binary()))
    read = batch.read_block(value, COMMIT, COMMIT - 1, Tables(*tables, gone=gone))
    return [row for part in read for row in part.to_pylist()], batch


@pytest.mark.parametrize("seed", range(60))
def test_a_block_gives_the_rows_of_its_inserts(seed: int) -> None:
    _, table, rows = drawn(seed)
    definition = table.definition
    plain = MutationBatch()
    plain.add(as_rows(definition, rows), COMMIT, COMMIT - 1, Tables(definition))
    expected = plain.take().to_pylist()
    assert read(as_block(definition, rows), definition)[0] == expected
    # The plain decoder reads blocks too.
    changes = decode_transaction(as_block(definition, rows), COMMIT, COMMIT - 1, Tables(definition))
    assert [(change.seq, change.after) for change in changes] == [(one["seq"], dict(one["after"])) for one in expected]


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_block_gives_its_rows_or_one_error(seed: int) -> None:
    draw, table, rows = drawn(seed)
    block = damaged(draw, block_of(table.definition, rows))
    if not block.startswith(MARK):
        return
    payload = binlog(pb.TableMutation(table_id=45, inserted_rows=[block], sequence=[pb.Insert]))
    outcomes: list[object] = []
    for decode in (read_blocks, read_plainly):
        try:
            outcomes.append(decode(payload, table.definition))
        except WireError as error:
            outcomes.append(error.where["table_id"])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] == "45" or isinstance(outcomes[0], list)


def read_blocks(payload: bytes, table: TableDef) -> list[object]:
    return [dict(row["after"]) for row in read(payload, table)[0]]


def read_plainly(payload: bytes, table: TableDef) -> list[object]:
    return [change.after for change in decode_transaction(payload, COMMIT, COMMIT - 1, Tables(table))]


ROWS: list[Row] = [{"id": str(n), "name": f"n{n}"} for n in range(10)]


def test_a_decoder_that_does_not_know_blocks_refuses_them() -> None:
    with pytest.raises(ROW_ERRORS):
        TableDecoder(article_table()).insert(block_of(article_table(), ROWS))


def test_filters_leave_out_and_count_the_rows_of_a_block() -> None:
    payload, table = as_block(article_table(), ROWS), article_table()
    rows, batch = read(payload, table, route=lambda _: None)
    assert (rows, batch.stats.table_rows, batch.stats.event_rows) == ([], 10, 0)
    rows, batch = read(payload, table, kinds=lambda _: ("update",))
    assert (rows, batch.stats.table_rows, batch.stats.event_rows) == ([], 0, 10)
    rows, batch = read(payload, table, route=lambda _: ("target", "other"), kinds=lambda _: ("insert",))
    assert {(row["source_db"], row["source_table"], row["db"], row["table"]) for row in rows} == {
        ("test", "test", "target", "other")
    }
    rows, batch = read(payload, gone=(table.id,))
    assert (rows, batch.stats.gone_rows) == ([], {table.id: 10})
    with pytest.raises(SchemaError):
        read(payload)


def test_a_block_of_other_columns_is_refused() -> None:
    block = encode_column_block({1: pa.array(["1"])})
    payload = binlog(pb.TableMutation(table_id=45, inserted_rows=[block], sequence=[pb.Insert]))
    with pytest.raises(WireError, match="not those of the table's definition"):
        read(payload, article_table())


def test_a_block_waits_until_the_rows_before_it_are_taken() -> None:
    batch = MutationBatch()
    batch.add(as_rows(article_table(), ROWS), COMMIT, COMMIT - 1, Tables(article_table()))
    [(_, value)] = find_column_blocks(pa.array([as_block(article_table(), ROWS)], pa.binary()))
    with pytest.raises(AssertionError):
        list(batch.read_block(value, COMMIT, COMMIT - 1, Tables(article_table())))


@pytest.mark.parametrize("seed", range(30))
def test_blocks_are_found_among_other_binlogs(seed: int) -> None:
    """Also among binlogs with values that look like one."""
    draw, table = Random(seed), article_table()
    block = as_block(table, ROWS)
    lookalike = as_rows(table, [{"id": "1", "name": MARK[1:].decode()}])
    alone = encode_commit_binlog(1, 2, b"k", MARK * 2)
    value = pb.TableMutation(table_id=45, inserted_rows=[block_of(table, ROWS)] * 2, sequence=[pb.Insert] * 2)
    kinds = [block, lookalike, alone, binlog(value), b"", MARK, as_rows(table, ROWS)]
    binlogs = [draw.choice(kinds) for _ in range(draw.randint(0, 20))]
    array = pa.array([b"before", *binlogs, b"after"], pa.binary()).slice(1, len(binlogs))
    assert [number for number, _ in find_column_blocks(array)] == [n for n, one in enumerate(binlogs) if one is block]
