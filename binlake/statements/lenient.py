"""Write rows with the error value of an ENUM (ordinal 0, `name_error_value`), which a strict session refuses.

TiDB stores this value if the source's session was lenient. No literal stores it in a strict session (measured on
MariaDB
10.11), so a statement with such a row runs in lenient mode. All other statements stay strict, because there a value
that is too long must fail and not be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from binlake.base.sql import Dialect
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_MODE = "NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"


def find_rows_with_error_values(images: Mapping[str, Any], columns: Sequence[ColumnInfo]) -> Any:
    """A numpy mask of the rows that contain an ENUM's error value; None if no row does."""
    masks = [
        np.asarray(pc.fill_null(pc.equal(images[column.name], name_error_value(column.elems)), fill_value=False))
        for column in columns
        if has_error_value(column)
    ]
    any_mask = np.logical_or.reduce(masks) if masks else np.zeros(1, dtype=bool)
    return any_mask if any_mask.any() else None


def has_error_value(column: ColumnInfo) -> bool:
    """True if `column` can have the error value of an ENUM."""
    return column.tp == t.ENUM


def render_lenient(sql: str, dialect: Dialect) -> str:
    """`sql` with a prefix that makes the session lenient for this statement only."""
    if dialect == "mariadb":
        return f"SET STATEMENT sql_mode = '{_MODE}' FOR {sql}"
    verb, _, rest = sql.partition(" ")
    return f"{verb} /*+ SET_VAR(sql_mode = '{_MODE}') */ {rest}"
