"""Reads the datum of a column in a binlog file as the column's canonical text.

Rule: a file has a value in one of two forms, and both give the same text. The original writes the values that a client
of TiDB sees (DATE, DECIMAL, JSON as text; ENUM, SET and BIT as numbers); a pump's form has packed numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

import structlog

from binlake.rows.codec import datum as d
from binlake.rows.codec.jsons import read_json
from binlake.rows.codec.tabledecoder import Reader, build_reader
from binlake.rows.codec.values import format_bit
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

log = structlog.get_logger(__name__)

ReadDatum = Callable[[bytes], str | None]
"""A whole datum -> its canonical text, None for NULL. Raises ValueError, IndexError for an unfit datum."""

_ZERO = "0000-00-00"


def build_datum_reader(column: ColumnInfo, zone: ZoneInfo) -> ReadDatum:
    """The reader of `column`. Texts of a TIMESTAMP are in the time zone `zone`."""
    read_plain: Reader = build_reader(column)
    read_bytes = _build_bytes_reader(column, zone)

    def read(datum: bytes) -> str | None:
        flag = datum[0]
        if flag == d.NIL:
            return None
        if flag in (d.COMPACT, d.BYTES):
            return read_bytes(datum)
        if flag == d.JSON:
            # In MariaDB the column is a text.
            return read_json(datum, 1)[0]
        text, end = read_plain(datum, 0)
        if end != len(datum):
            raise ValueError("bytes after a datum")
        return text

    return read


def _build_bytes_reader(column: ColumnInfo, zone: ZoneInfo) -> ReadDatum:
    if column.tp in t.STRINGS:
        plain = build_reader(column)
        return lambda datum: plain(datum, 0)[0]
    if column.tp == t.BIT:
        return lambda datum: format_bit(int.from_bytes(_read_content(datum), "big"), column.flen)
    if column.tp == t.TIMESTAMP:
        moved = lru_cache(maxsize=4096)(lambda text: convert_to_utc(text, zone))
        return lambda datum: moved(_read_content(datum).decode())
    return lambda datum: _read_content(datum).decode()


def _read_content(datum: bytes) -> bytes:
    read = d.read_compact if datum[0] == d.COMPACT else d.read_comparable
    content, end = read(datum, 1)
    if end != len(datum):
        raise ValueError("bytes after a datum")
    return content


def convert_to_utc(text: str, zone: ZoneInfo) -> str:
    """Convert a TIMESTAMP's text from `zone` to UTC, with the same number of fractional digits.

    In an hour that the zone has twice, the first one is assumed, as the text is ambiguous.
    """
    if text.startswith(_ZERO):
        return text
    seconds, point, fraction = text.partition(".")
    local = datetime.strptime(seconds, "%Y-%m-%d %H:%M:%S").replace(tzinfo=zone)
    moment = local.astimezone(UTC)
    if local.replace(fold=1).astimezone(UTC) != moment:
        log.warning("timestamp_in_a_doubled_hour", text=text, zone=zone.key, taken=moment.isoformat())
    return moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0") + point + fraction
