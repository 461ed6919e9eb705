"""Converts a mirror's values after a column changed its type, as the source converted them at MODIFY COLUMN.

The source logs no row changes for a MODIFY, so the mirror converts its values (`codec.casts`). A text that cannot be
converted stays unchanged: it is stored in `_text` if the new type cannot store it, and the mirror is marked inexact.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.rows.codec.casts import Moment, UnknownCast, cast_text, derive_cast_form
from binlake.rows.schema import ColumnInfo


def recast(
    source: ColumnInfo, target: ColumnInfo, texts: Sequence[str | None], moment: Moment
) -> tuple[list[str | None], list[str]]:
    """(`texts` of column `source` as texts of column `target`, [the reason for the first that cannot be converted])."""
    if derive_cast_form(source) == derive_cast_form(target):
        return list(texts), []
    converted: list[str | None] = []
    unknown: list[str] = []
    for text in texts:
        try:
            converted.append(cast_text(source, target, text, moment))
        except UnknownCast as error:
            converted.append(text)
            unknown = unknown or [str(error)]
    return converted, unknown
