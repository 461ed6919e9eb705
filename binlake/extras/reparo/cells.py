"""Reads the cells of rows in a binlog file, one by one or of many rows of one table at once, as canonical texts.

Rule: a file has a value in one of two forms, and both give the same text. The original writes the values that a client
of TiDB sees (DATE, DECIMAL, JSON as text; ENUM, SET and BIT as numbers); a pump's form has packed numbers.

The cells of many rows are datums in serialised `Column` messages. The rows of a group have the same columns in the same
order, serialised alike. So the bytes before each value are equal in all rows, and only lengths differ. Other rows form
separate groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import structlog

from binlake.common.arrowcolumns import encode_dictionary
from binlake.rows.codec import datum as d
from binlake.rows.codec.columns import build_lane_reader
from binlake.rows.codec.jsons import read_json
from binlake.rows.codec.lanes import Ints, Lanes, Spots
from binlake.rows.codec.tabledecoder import Reader, build_reader
from binlake.rows.codec.values import format_bit
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.wire import pb_binlog_pb2 as pb

log = structlog.get_logger(__name__)

ReadDatum = Callable[[bytes], str | None]
"""A whole datum -> its canonical text, None for NULL. Raises ValueError, IndexError for an unfit datum."""

_ZERO = "0000-00-00"
_VALUE, _CHANGED = b"\x22", 0x2A
"""Tags of the fields with values, which are the last fields of a `Column`."""


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


@dataclass(frozen=True)
class DatumColumn:
    """The datums of one column: for each row, the bytes of `lanes` from `at` to `ends`."""

    lanes: Lanes
    at: Ints
    ends: Ints

    def read_datum(self, row: int) -> bytes:
        """The datum of one row."""
        return self.lanes.data[self.at[row] : self.ends[row]].tobytes()


@dataclass(frozen=True)
class GroupColumn:
    """A column of a group: its `head` (a `Column` without values), and the cells of both sides of the rows."""

    head: pb.Column
    value: DatumColumn
    changed: DatumColumn | None


def split_columns(raws: Sequence[bytes], width: int, *, update: bool) -> list[GroupColumn] | None:
    """The columns of the rows in the flat list `raws` (`width` columns per row); None if not serialised alike.

    Raises DecodeError.
    """
    lanes = Lanes.of(raws)
    found = []
    for number in range(width):
        head = pb.Column.FromString(raws[number])
        head.ClearField("value")
        head.ClearField("changed_value")
        column = _split_column(lanes, slice(number, None, width), head, update=update)
        if column is None:
            return None
        found.append(column)
    return found


def _split_column(lanes: Lanes, rows: slice, head: pb.Column, *, update: bool) -> GroupColumn | None:
    starts, ends = lanes.starts[rows], lanes.ends[rows]
    front = np.frombuffer(head.SerializeToString() + _VALUE, np.uint8)
    if (ends - starts <= len(front)).any():
        return None
    if (lanes.read_bytes(starts[:, None] + np.arange(len(front))) != front).any():
        return None
    value = _find_cells(lanes, starts + len(front), ends)
    if value is None:
        return None
    if not update:
        return GroupColumn(head, value, None) if (value.ends == ends).all() else None
    if (value.ends >= ends).any() or (lanes.read_bytes(value.ends) != _CHANGED).any():
        return None
    changed = _find_cells(lanes, value.ends + 1, ends)
    return GroupColumn(head, value, changed) if changed is not None and (changed.ends == ends).all() else None


def _find_cells(lanes: Lanes, at: Ints, ends: Ints) -> DatumColumn | None:
    """The cells whose lengths are at `at`; None if one is truncated or empty."""
    sizes = lanes.read_uvarints(at)
    stop = sizes.next + sizes.values.view(np.int64)
    whole = sizes.good & (sizes.values > 0) & (sizes.values < 1 << 31) & (stop <= ends)
    return DatumColumn(lanes, sizes.next, stop) if whole.all() else None


def read_texts(cells: DatumColumn, column: ColumnInfo, read: ReadDatum, zone: ZoneInfo) -> pa.Array:
    """The canonical texts of `cells`. `read` reads single datums if they cannot be read together. Raises CellError."""
    null = cells.lanes.read_bytes(cells.at) == d.NIL
    null &= cells.ends - cells.at == 1
    here = np.flatnonzero(~null)
    texts = _read_together(cells, here, column, zone)
    if texts is None:
        return pa.array(_read_each(cells, read), pa.string())
    if not null.any():
        return texts
    return texts.take(pa.array(np.cumsum(~null) - 1, mask=null))


def _read_together(cells: DatumColumn, here: Ints, column: ColumnInfo, zone: ZoneInfo) -> pa.Array | None:
    """Read the cells `here` together; None if one has a form that the lane readers do not support."""
    spots = Spots(cells.lanes, here, cells.at[here], cells.ends[here])
    as_text = column.tp not in t.STRINGS and column.tp != t.BIT and bool((spots.flags == d.COMPACT).all())
    kind = replace(column, tp=t.VARCHAR, charset="utf8mb4", elems=()) if as_text else column
    if kind.tp in (t.BIT, t.JSON):
        return None
    found = build_lane_reader(kind)(spots)
    if not (found.good.all() and (found.next == spots.ends).all()):
        return None
    return (
        _convert_to_utc(found.texts, zone)
        if as_text and column.tp == t.TIMESTAMP and zone.key != "UTC"
        else found.texts
    )


def _convert_to_utc(texts: pa.Array, zone: ZoneInfo) -> pa.Array | None:
    encoded = encode_dictionary(texts)
    try:
        moved = [convert_to_utc(text, zone) for text in encoded.dictionary.to_pylist()]
    except ValueError:
        return None
    return pa.array(moved, pa.string()).take(encoded.indices)


class CellError(ValueError):
    """The datum of row number `row` of the group does not fit its column."""

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(str(error))
        self.row = row


def _read_each(cells: DatumColumn, read: ReadDatum) -> list[str | None]:
    found: list[str | None] = []
    for row in range(len(cells.at)):
        try:
            found.append(read(cells.read_datum(row)))
        except (IndexError, ValueError, KeyError, OverflowError) as error:
            raise CellError(row, error) from error
    return found
