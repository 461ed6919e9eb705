"""A full load delivers the values of every type as its source shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tabledefs as d
from support.mariadb import MariaDb, MySql, execute
from support.snapshots import images, opened, reader_of

from binlake.mysqlbinlog.tablerows.rowtexts import RowWriter, build_row_text_writer
from binlake.pump_service.feeder.server import Link, ask
from binlake.rows.codec.datum import write_decimal, write_uint
from binlake.rows.codec.temporal import pack_moment
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

DB = "snaptypes"

Typed = tuple[str, d.Json, list[str | None]]
"""Type, definition, SQL of the values."""

TYPES: list[Typed] = [
    ("TINYINT", d.col("c", t.TINY), ["-128", "127", None]),
    ("BIGINT UNSIGNED", d.col("c", t.LONGLONG, unsigned=True), ["0", "18446744073709551615"]),
    ("INT(8) ZEROFILL", d.col("c", t.LONG, unsigned=True), ["42"]),
    ("DECIMAL(30,10)", d.col("c", t.NEWDECIMAL, flen=30, decimal=10), ["-12345678901234567890.0123456789", "0"]),
    ("DECIMAL(3,3)", d.col("c", t.NEWDECIMAL, flen=3, decimal=3), ["0.067", "-0.5"]),
    ("BIT(64)", d.col("c", t.BIT, flen=64), ["18446744073709551615", "5"]),
    ("YEAR", d.col("c", t.YEAR), ["0", "2155"]),
    ("DATE", d.col("c", t.DATE), ["'0000-00-00'", "'2024-00-31'", "'9999-12-31'"]),
    ("TIME(6)", d.col("c", t.DURATION, decimal=6), ["'-838:59:59'", "'12:00:00.000001'"]),
    ("DATETIME(3)", d.col("c", t.DATETIME, decimal=3), ["'0000-00-00 00:00:00'", "'2024-02-29 23:59:59.999'"]),
    ("TIMESTAMP(6) NULL", d.col("c", t.TIMESTAMP, decimal=6), ["'2024-01-01 00:00:00.5'", "0"]),
    ("VARCHAR(50) CHARACTER SET latin1", d.col("c", t.VARCHAR, flen=50, charset="latin1"), ["'äöü€'", "''"]),
    ("VARCHAR(50) CHARACTER SET gbk", d.col("c", t.VARCHAR, flen=50), ["'中文'"]),
    ("LONGTEXT", d.col("c", t.LONGBLOB), ["REPEAT('x', 70000)", "'a\\\\n\\'😀'", "REPEAT('ü', 130)"]),
    ("CHAR(10)", d.col("c", t.STRING, flen=10), ["'a  '"]),
    ("BINARY(4)", d.col("c", t.STRING, flen=4, charset="binary"), ["X'00FF'"]),
    ("LONGBLOB", d.col("c", t.LONGBLOB, charset="binary"), ["X'00FFFB'", "REPEAT(X'FB', 300)", "''"]),
    ("ENUM('', 'a', 'ß')", d.col("c", t.ENUM, elems=("", "a", "ß")), ["'ß'", "''"]),
    ("SET('a', 'b', 'ß')", d.col("c", t.SET, elems=("a", "b", "ß")), ["'ß,a'", "''"]),
]
JSON: Typed = ("JSON", d.col("c", t.JSON), ["""'{"b": [1, 1.5, null, "x"], "a": true}'""", "'[]'"])


@pytest.fixture(params=["columns", "together", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written as columns or as blocks of rows, however few, or by the plain writer."""
    if request.param == "columns":
        monkeypatch.setattr("binlake.pump_service.feeder.snapshot.reading.BlockWriter.write", None)
        monkeypatch.setattr("support.snapshots.FORM", "columns")
    elif request.param == "together":
        monkeypatch.setattr("binlake.mysqlbinlog.tablerows.rowblocks._FEWEST", 1)
        monkeypatch.setattr(RowWriter, "write", None)


@pytest.fixture(params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """A server of each family with an empty database."""
    server: MariaDb = request.getfixturevalue(request.param)
    execute(server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    yield server
    execute(server, f"DROP DATABASE {DB}")


@pytest.mark.mariadb
@pytest.mark.usefixtures("way")
def test_values_of_each_type_equal_those_that_the_source_shows(source: MariaDb) -> None:
    types = [*TYPES, *[JSON] * isinstance(source, MySql)]
    columns = [{**definition, "name": {"O": f"c{n}", "L": f"c{n}"}} for n, (_, definition, _) in enumerate(types)]
    table = d.table("t", _key(), *columns, db=DB, pk_is_handle=True)
    declared = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(types))
    execute(source, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, {declared})")
    with source.connect() as link:
        ask(link, "SET sql_mode = '', time_zone = '+00:00'")
        for row in range(max(len(values) for _, _, values in types)):
            literals = {f"c{n}": values[row] or "NULL" for n, (_, _, values) in enumerate(types) if row < len(values)}
            ask(link, f"INSERT INTO {DB}.t (id, {', '.join(literals)}) VALUES ({row}, {', '.join(literals.values())})")
        expected = [_shown(link, row, types) for row in range(3)]
    with opened(source, 1) as snapshot:
        reader, _ = reader_of(source, snapshot, table)
        read = sorted(images(reader, table), key=lambda row: int(row.pop("id") or 0))
    assert read == expected


def _key() -> d.Json:
    column = d.col("id", t.LONG, not_null=True)
    column["type"]["Flag"] |= t.FLAG_PRIMARY
    return column


def _shown(link: Link, row: int, types: Sequence[Typed]) -> dict[str, str | None]:
    """The values that the server shows, in the codec's canonical texts: bytes as hex, numbers without leading zeros."""
    texts: dict[str, str | None] = {}
    for n, (kind, *_) in enumerate(types):
        expression = f"CAST(c{n} AS CHAR)"
        if kind in ("BINARY(4)", "LONGBLOB"):
            expression = f"HEX(c{n})"
        elif kind == "BIT(64)":
            expression = f"LPAD(HEX(c{n} + 0), 16, '0')"
        elif kind == "INT(8) ZEROFILL":
            expression = f"CAST(c{n} + 0 AS CHAR)"
        texts[f"c{n}"] = ask(link, f"SELECT {expression} FROM {DB}.t WHERE id = {row}")[0][0]
    return texts


@pytest.mark.mariadb
@pytest.mark.usefixtures("way")
def test_floats_are_exact(source: MariaDb) -> None:
    """The server's own text of a FLOAT has six digits."""
    table = d.table("t", d.col("f", t.FLOAT), d.col("g", t.DOUBLE), db=DB)
    values = "(16777215, 0.1), (1.1, 1.7976931348623157e308), (-3.4028234663852886e38, -2e-308)"
    execute(source, f"CREATE TABLE {DB}.t (f FLOAT, g DOUBLE)", f"INSERT INTO {DB}.t VALUES {values}")
    with opened(source, 1) as snapshot:
        reader, _ = reader_of(source, snapshot, table)
        read = {(float(row["f"] or 0), float(row["g"] or 0)) for row in images(reader, table)}
    assert read == {(16777215.0, 0.1), (1.1, 1.7976931348623157e308), (-3.4028235e38, -2e-308)}


@pytest.mark.mariadb
@pytest.mark.usefixtures("way")
def test_a_double_with_digits_is_read_as_in_the_log(source: MariaDb) -> None:
    """The server shows -0.001 of what it stores, and logs, as -0.0010000000000000009."""
    table = d.table("t", d.col("g", t.DOUBLE, flen=10, decimal=3), db=DB)
    execute(source, f"CREATE TABLE {DB}.t (g DOUBLE(10,3))", f"INSERT INTO {DB}.t VALUES (-0.001), (1.234), (NULL)")
    with opened(source, 1) as snapshot:
        reader, _ = reader_of(source, snapshot, table)
        read = [row["g"] and float(row["g"]) for row in images(reader, table)]
    assert read == [-0.0010000000000000009, 1.234, None]


@given(st.data())
def test_a_decimal_is_written_like_the_reference(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(precision, 30)))
    number = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole, frac = digits[: len(digits) - scale], digits[len(digits) - scale :]
    text = "-" * (number < 0) + (whole if len(whole) + scale <= precision else "") + "." * bool(scale) + frac
    if text.strip("-."):
        write = build_row_text_writer(ColumnInfo.from_json(_column(t.NEWDECIMAL, precision, scale)))
        assert write(text.encode()) == b"\x06" + write_decimal(text, precision, scale)


@given(st.datetimes(), st.integers(0, 6))
def test_a_time_value_is_written_like_the_reference(moment: datetime, fsp: int) -> None:
    write = build_row_text_writer(ColumnInfo.from_json(_column(t.DATETIME, -1, fsp)))
    text = moment.isoformat(" ", "microseconds")[: 20 + fsp if fsp else 19]
    for one in (text, text[:10], "0000-00-00 00:00:00", "2024-00-31 23:59:59.5"):
        assert write(one.encode()) == write_uint(pack_moment(one))


def _column(tp: int, flen: int, decimal: int) -> d.Json:
    return {**d.col("c", tp, flen=flen, decimal=decimal), "id": 1, "offset": 0}
