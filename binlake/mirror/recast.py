"""Converts a mirror's values after a column changed its type, as the source converted them at MODIFY COLUMN.

The source logs no row changes for a MODIFY, so the mirror converts its values (`codec.casts`). A text that cannot be
converted stays unchanged: it is stored in `_text` if the new type cannot store it, and the mirror is marked inexact. So
is one whose values a MySQL or MariaDB converted in a way that is not TiDB's.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.families import converts_as_tidb
from binlake.dialect.givenvalues import is_made_up
from binlake.mysqlbinlog.charsets import UTF8, find_decoder, has_ascii, replace_missing_letters
from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text, derive_cast_form, may_cut
from binlake.rows.codec.encode import format_zero
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession

_AS_UTF8 = UTF8 | {"", "ascii", "binary"}
_ZEROED = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE} | t.STRINGS


def may_change(source: ColumnInfo, target: ColumnInfo, moment: CastMoment) -> bool:
    """Whether a value of `source` may be another one as `target`."""
    forms_differ = derive_cast_form(source) != derive_cast_form(target)
    differs = forms_differ or may_cut(source, target) or _may_lose_letters(source, target, moment)
    return differs or _may_zero(source, target, moment) or _is_numbered(source, target, moment)


def explain_fill(column: ColumnInfo, moment: CastMoment) -> str:
    """Why the values of a new column in old rows are not known; "" if its definition gives them."""
    if not moment.family or not is_made_up(column):
        return ""
    return f"the source filled the new column {column.name} with values that are not in the log"


def recast(
    source: ColumnInfo, target: ColumnInfo, texts: Sequence[str | None], moment: CastMoment
) -> tuple[list[str | None], list[str]]:
    """(`texts` of column `source` as texts of column `target`, [the reason for the first that cannot be converted])."""
    if not may_change(source, target, moment):
        return list(texts), []
    converted: list[str | None] = []
    unknown = _explain_other_rules(source, target, moment) if any(text is not None for text in texts) else []
    if _is_numbered(source, target, moment) and any(text in (None, "0") for text in texts):
        unknown = [f"the source numbered rows with NULL or 0 in column {target.name}, which are not in the log"]
    for text in texts:
        try:
            converted.append(_recast_one(source, target, text, moment))
        except UnknownCast as error:
            converted.append(text)
            unknown = unknown or [str(error)]
    return converted, unknown


def _recast_one(source: ColumnInfo, target: ColumnInfo, text: str | None, moment: CastMoment) -> str | None:
    if text is not None or not _may_zero(source, target, moment):
        if text is not None and moment.family:
            text = _change_bytes(source, target, text)
        converted = cast_text(source, target, text, moment)
        return converted and _replace_missing_letters(source, target, converted, moment)
    if target.tp not in _ZEROED:
        raise UnknownCast(f"NULL as {target.type_text} of column {target.name}, which became NOT NULL")
    return format_zero(target)


def _change_bytes(source: ColumnInfo, target: ColumnInfo, text: str) -> str:
    """`text` of `source` so that `cast_text`, which knows UTF-8 alone, makes of it what a MySQL or MariaDB did.

    Bytes that become a text are letters of its character set. Raises UnknownCast for letters of another character set
    than UTF-8 that become bytes.
    """
    if target.tp not in t.STRINGS or source.is_binary == target.is_binary:
        return text
    if target.is_binary:
        is_plain = text.isascii() and has_ascii(source.charset)
        if source.charset not in _AS_UTF8 and not is_plain:
            raise UnknownCast(f"letters of {source.charset} as bytes of column {target.name}")
        return text
    if source.tp not in t.STRINGS or target.charset in _AS_UTF8:
        return text
    decode = find_decoder(target.charset)
    try:
        letters = decode(bytes.fromhex(text)) if decode is not None else None
    except UnicodeError:
        letters = None
    if letters is None:
        raise UnknownCast(f"bytes that are no text of {target.charset} in column {target.name}")
    return letters.encode().hex().upper()


def _may_lose_letters(source: ColumnInfo, target: ColumnInfo, moment: CastMoment) -> bool:
    """Whether the source converted texts to another character set, with a question mark for each letter it lacks."""
    return bool(moment.family) and target.tp in t.STRINGS and not target.is_binary and source.charset != target.charset


def _replace_missing_letters(source: ColumnInfo, target: ColumnInfo, text: str, moment: CastMoment) -> str:
    if not _may_lose_letters(source, target, moment):
        return text
    try:
        return replace_missing_letters(target.charset, text)
    except LookupError as error:
        raise UnknownCast(f"a text of column {target.name}: {error}") from error


def _may_zero(source: ColumnInfo, target: ColumnInfo, moment: CastMoment) -> bool:
    """Whether NULL may have become the type's zero: TiDB refuses a NOT NULL over NULL, other servers may not."""
    return bool(moment.family) and target.not_null and not source.not_null


def _is_numbered(source: ColumnInfo, target: ColumnInfo, moment: CastMoment) -> bool:
    """Whether the column became AUTO_INCREMENT: the server then numbers rows that have no number."""
    return bool(moment.family and target.flag & ~source.flag & t.FLAG_AUTO_INCREMENT)


def _explain_other_rules(source: ColumnInfo, target: ColumnInfo, moment: CastMoment) -> list[str]:
    session = SourceSession("+00:00", family=moment.family)
    alike = derive_cast_form(source) == derive_cast_form(target) or not moment.family
    if alike or converts_as_tidb(source, target, session):
        return []
    kinds = f"{source.type_text} to {target.type_text} of column {target.name}"
    return [f"{moment.family} converts {kinds} by its own rules"]
