"""Rows of a SELECT as TiDB's rows where no server is needed to see it: keys of its own kinds, numbers at their edge."""

from __future__ import annotations

import pytest
from support.tabledefs import col, primary, table

from binlake.mysqlbinlog.tablerows.chunks import Chunks
from binlake.mysqlbinlog.tablerows.rowtexts import RowWriter
from binlake.rows.codec.tabledecoder import decoder_of
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t


def packet(*values: str | None) -> bytes:
    """A row as a server sends it."""
    parts = [b"\xfb" if value is None else bytes((len(value.encode()),)) + value.encode() for value in values]
    return b"".join(parts)


def read_back(definition: TableDef, *values: str | None) -> tuple[str | None, ...]:
    (row,) = RowWriter(definition).write([packet(*values)])
    return tuple(decoder_of(definition).insert(row)[1])


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
def test_a_decimal_without_room_in_front_of_its_point(precision: int, scale: int, text: str) -> None:  # S4-24
    definition = table("d", col("id"), col("v", t.NEWDECIMAL, flen=precision, decimal=scale), keys=(primary("id"),))
    assert read_back(definition, "1", text) == ("1", text)


def test_a_row_of_a_table_that_is_ordered_by_a_key_of_several_columns() -> None:  # S4-24 S1-04
    columns = (col("w", t.VARCHAR, flen=20), col("n", t.LONGLONG, unsigned=True), col("v", t.VARCHAR, flen=20))
    definition = table("k", *columns, keys=(primary("w", "n"),), is_common_handle=True)
    assert read_back(definition, "größe", str(1 << 63), None) == ("größe", str(1 << 63), None)
    prefixed = table("k", *columns, keys=(primary(("w", 2), "n"),), is_common_handle=True)
    assert read_back(prefixed, "größe", "7", "x") == ("größe", "7", "x")


def test_a_table_without_a_key_has_the_ranges_of_its_row_ids() -> None:  # S4-24
    definition = table("log", col("n"), col("what", t.VARCHAR, flen=20))
    assert not Chunks(("d", "log"), definition, 10).is_cut
    chunks = Chunks(("d", "log"), definition, 10, "_tidb_rowid")
    assert chunks.is_cut
    chunks.pass_over("30001")
    assert chunks.low == "30001"
