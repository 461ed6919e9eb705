"""Converts a column's canonical texts of `mutation` to forms that several protocols share. NULL stays NULL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.arrowcolumns import Array, map_distinct
from binlake.rows.codec.values import show_member_text
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_SECONDS = len("2024-02-29 12:34:56")


def convert_texts_to_zone(column: ColumnInfo, texts: Array, zone: str) -> Array:
    """Convert texts of a TIMESTAMP from UTC to `zone`. The zero date and texts of other types do not change."""
    if column.tp != t.TIMESTAMP or zone == "UTC":
        return texts
    zero = pc.starts_with(texts, "0000-00-00")
    real = pc.if_else(zero, pa.scalar(None, pa.string()), texts)
    moments = pc.assume_timezone(pc.cast(real, pa.timestamp("us")), "UTC").cast(pa.timestamp("us", zone))
    local = pc.cast(pc.local_timestamp(moments), pa.string())
    return pc.coalesce(pc.utf8_slice_codeunits(local, 0, _SECONDS + (column.fsp + 1 if column.fsp else 0)), texts)


def convert_images_to_zone(columns: Sequence[ColumnInfo], images: Mapping[str, Array], zone: str) -> dict[str, Array]:
    """The texts of `columns`, with TIMESTAMPs in `zone`."""
    return {column.name: convert_texts_to_zone(column, images[column.name], zone) for column in columns}


def compute_member_numbers(column: ColumnInfo, texts: Array) -> Array:
    """As uint64: for an ENUM the member's number, from 1; for a SET one bit per member; 0 for no member."""
    places = {member: place for place, member in reversed(list(enumerate(column.elems)))}

    def compute_number(text: str) -> int:
        if column.tp == t.ENUM:
            return places.get(text, -1) + 1
        return sum({1 << places[member] for member in text.split(",") if member in places}) if text else 0

    return map_distinct(texts, compute_number, pa.uint64())


def show_members(column: ColumnInfo, texts: Array) -> Array:
    """The texts of `column` as servers show them."""
    if not column.has_empty_member:
        return texts
    return map_distinct(texts, partial(show_member_text, column), pa.string())


def parse_bits(texts: Array) -> Array:
    """The hex texts of a BIT as uint64."""
    return map_distinct(texts, lambda text: int(text, 16), pa.uint64())


def remove_exponents(texts: Array) -> Array:
    """Texts of FLOAT and DOUBLE without an exponent."""
    if not pc.any(pc.match_substring(texts, "e")).as_py():
        return texts
    return map_distinct(texts, lambda text: format(Decimal(text), "f"), pa.string())
