"""Rows of a SELECT as TiDB's rows, in cases without a server: each kind of key, numbers at their limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.tabledefs import col, primary, table

from binlake.mysqlbinlog.tablerows.ranges import Chunks
from binlake.mysqlbinlog.tablerows.rowblocks import BlockWriter
from binlake.mysqlbinlog.tablerows.rowtexts import RowWriter
from binlake.rows.codec.tabledecoder import look_up_decoder
from binlake.rows.schema import ColumnInfo, DdlJob, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).parent.parent / "captures"


def packet(*values: bytes | None) -> bytes:
    """A row as a server sends it."""
    return b"".join(b"\xfb" if value is None else length(len(value)) + value for value in values)


def length(size: int) -> bytes:
    return bytes((size,)) if size < 0xFB else b"\xfd" + size.to_bytes(3, "little")


def read_back(definition: TableDef, *values: str | None) -> tuple[str | None, ...]:
    (row,) = RowWriter(definition).write([packet(*(None if value is None else value.encode() for value in values))])
    return tuple(look_up_decoder(definition).insert(row)[1])


@pytest.mark.parametrize(
    ("precision", "scale", "text"),
    [
        (9, 9, "-0.999999999"),
        (9, 9, "0.000000001"),
        (30, 30, "0." + "9" * 30),
        (10, 2, "-12345678.90"),
        (4, 0, "-9999"),
    ],
)
def test_decimal_without_digits_before_its_point(precision: int, scale: int, text: str) -> None:  # S4-24
    definition = table("d", col("id"), col("v", t.NEWDECIMAL, flen=precision, decimal=scale), keys=(primary("id"),))
    assert read_back(definition, "1", text) == ("1", text)


def test_row_of_a_table_with_a_clustered_key_of_several_columns() -> None:  # S4-24 S1-04
    columns = (col("w", t.VARCHAR, flen=20), col("n", t.LONGLONG, unsigned=True), col("v", t.VARCHAR, flen=20))
    definition = table("k", *columns, keys=(primary("w", "n"),), is_common_handle=True)
    assert read_back(definition, "größe", str(1 << 63), None) == ("größe", str(1 << 63), None)
    prefixed = table("k", *columns, keys=(primary(("w", 2), "n"),), is_common_handle=True)
    assert read_back(prefixed, "größe", "7", "x") == ("größe", "7", "x")


def test_table_without_a_key_is_split_by_row_id() -> None:  # S4-24
    definition = table("log", col("n"), col("what", t.VARCHAR, flen=20))
    assert not Chunks(("d", "log"), definition, 10).is_cut
    chunks = Chunks(("d", "log"), definition, 10, "_tidb_rowid")
    assert chunks.is_cut
    chunks.pass_over("30001")
    assert chunks.low == "30001"


AS_NUMBERS = {t.FLOAT, t.ENUM, t.SET, t.BIT}
"""Columns that a load selects as numbers, while their text was recorded."""


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("types_all", 19), *(pytest.param(name, 4, marks=pytest.mark.soak) for name in ("keys", "partition_gen", "ddl"))],
)
def test_recorded_texts_of_tidb_equal_its_binlogs(name: str, kinds: int) -> None:  # S4-24 S1-04
    capture = Capture(CAPTURES / name)
    compared: set[int] = set()
    for shown in list(capture.read_states())[-3:]:
        state = SchemaState().fold((job.finished_ts, job) for job in map(DdlJob.from_dict, capture.read_jobs())
                                   if job.finished_ts <= shown.commit_ts)  # fmt: skip
        for content in shown.contents:
            definition = state.find(*content["table"].split(".", 1)) if content.get("rows") else None
            names = [c.name for c in definition.columns] if definition is not None else []
            if definition is None or names != content["columns"]:
                continue
            numbered = {c.name: c for c in definition.row_columns}
            rows = [dict(zip(names, row, strict=True)) for row in content["rows"]]
            packets = [packet(*(sent(c, row[c.name]) for c in definition.row_columns)) for row in rows]
            data = BlockWriter(definition).write(packets)
            mutation = pb.TableMutation.FromString(bytes(data.data))
            for row, written in zip(rows, mutation.inserted_rows, strict=True):
                read = dict(zip(*look_up_decoder(definition).insert(written), strict=True))
                for column in numbered.values():
                    if column.tp not in AS_NUMBERS:
                        compared.add(column.tp)
                        assert plain(column, read[column.name]) == plain(column, recorded(row[column.name]))
    assert len(compared) >= kinds


def recorded(value: Any) -> str | None:
    """A value of a capture as canonical text."""
    return str(value["hex"]) if isinstance(value, dict) else None if value is None else str(value)


def sent(column: ColumnInfo, value: Any) -> bytes | None:
    """The rows that the server sends, as recorded."""
    if value is None:
        return None
    if column.tp in AS_NUMBERS:
        return b"1"
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def plain(column: ColumnInfo, text: str | None) -> Any:
    """Normalise values that are equal but written differently."""
    if text is None:
        return None
    return json.loads(text) if column.tp == t.JSON else float(text) if column.tp == t.DOUBLE else text.upper()
