"""Converts row images to typed rows of a mirror, typed rows back to images, and values when a column changed its type.

The source logs no row changes for a MODIFY COLUMN, so the mirror converts its values as the source did (`codec.casts`).
A text that cannot be converted stays unchanged: it is stored in `_text` if the new type cannot store it, and the mirror
is marked inexact. So is one whose values a MySQL or MariaDB converted in a way that is not TiDB's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.lakecolumns import Change, Mirror
from binlake.dialect.families import converts_as_tidb
from binlake.dialect.givenvalues import is_made_up
from binlake.lake.columntypes import (
    TEXT_TYPE,
    build_schema,
    choose_arrow_type,
    format_texts,
    parse_texts,
    select_image_column,
)
from binlake.mysqlbinlog.charsets import UTF8, find_decoder, has_ascii, replace_missing_letters
from binlake.rows.codec import format_key_text
from binlake.rows.codec.assemble import format_key_texts
from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text, derive_cast_form, may_cut
from binlake.rows.codec.encode import derive_filled_text, format_zero
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.job import SourceSession
from binlake.statements import build_images_from_maps
from binlake.statements.generation import find_filled_operands

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


Columns = dict[str, list[str | None]]
"""By column, the canonical texts of all rows."""


def build_image_rows(table: TableDef, images: pa.MapArray, commit_ts: pa.Array) -> pa.Table:
    """Rows of the mirror of `table` from row images, the first among equal rows each; a NULL map is a row of NULLs."""
    texts = build_images_from_maps(images, [column.name for column in table.row_columns])
    return _build_rows(table, texts, commit_ts, pa.array(np.zeros(len(images), np.int32)))


def select_last_changes(table: TableDef, net: pa.Table) -> pa.Table:
    """The net changes of keyed rows of `table` of which `net` has no later one for the same row of the mirror."""
    images = select_images(net)
    names = table.find_identity().columns
    texts = build_images_from_maps(images, list(names))
    codes = encode_dictionary(format_key_texts([texts[name] for name in names]))
    last = np.zeros(len(codes.dictionary), np.int64)
    numbers = np.asarray(codes.indices)
    # The last one of equal places is kept.
    last[numbers] = np.arange(len(numbers))
    return net if len(last) == net.num_rows else net.take(pa.array(np.sort(last)))


def select_images(net: pa.Table) -> pa.MapArray:
    """The images of the rows that `net` writes or removes."""
    deleted = pc.equal(net.column(Change.OP), "delete").combine_chunks()
    images = net.column(Change.AFTER).combine_chunks()
    return (
        pc.if_else(deleted, net.column(Change.BEFORE).combine_chunks(), images) if pc.any(deleted).as_py() else images
    )


def build_row_keys(table: TableDef, texts: Columns) -> list[str]:
    """`_rowkey` of each row: the JSON array of its identity's texts."""
    columns = [texts[name] for name in table.find_identity().columns]
    return [format_key_text(list(values)) for values in zip(*columns, strict=True)]


def build_typed_rows(table: TableDef, texts: Columns, commit_ts: Sequence[int], copies: Sequence[int]) -> pa.Table:
    """Rows of the mirror of `table` from texts, last commit_ts and numbers among equal rows.

    Their schema is that of `columntypes.build_schema`.
    """
    columns = {column.name: pa.array(texts[column.name], pa.string()) for column in table.row_columns}
    return _build_rows(table, columns, pa.array(commit_ts, pa.int64()), pa.array(copies, pa.int32()))


def _build_rows(table: TableDef, texts: Mapping[str, pa.Array], commit_ts: pa.Array, copies: pa.Array) -> pa.Table:
    arrays: list[pa.Array] = []
    unfit: dict[int, dict[str, str]] = defaultdict(dict)
    for column in table.row_columns:
        array, kept = parse_texts(column, texts[column.name])
        arrays.append(array)
        for place, text in kept.items():
            unfit[place][column.name] = text
    keys = format_key_texts([texts[name] for name in table.find_identity().columns])
    return pa.Table.from_arrays(
        [*arrays, commit_ts, keys, copies, _build_unfit(unfit, len(commit_ts))], schema=build_schema(table)
    )


def _build_unfit(unfit: Mapping[int, dict[str, str]], rows: int) -> pa.Array:
    """The column of texts, by position and column, that no typed column holds."""
    if not unfit:
        return pa.nulls(rows, TEXT_TYPE)
    return pa.array([list(unfit[row].items()) if row in unfit else None for row in range(rows)], TEXT_TYPE)


def read_mirror_texts(table: TableDef, rows: pa.Table) -> Columns:
    """The texts of rows read from the mirror of `table`."""
    kept = rows.column(Mirror.TEXT).combine_chunks()
    return {c.name: _read_column_texts(c, rows, kept) for c in table.row_columns}


def _read_column_texts(column: ColumnInfo, rows: pa.Table, kept: pa.MapArray) -> list[str | None]:
    values = rows.column(column.name).combine_chunks()
    return format_texts(column, values, select_image_column(kept, column.name).to_pylist())


class Reshaper:
    """Converts rows of the mirror of `before` to rows of the mirror of `after`: columns by id, else by name (R-19).

    `renamed`: former name by new name of columns to which a CHANGE also gave a new id (`Effect.renamed`).

    New columns get their origin default. A text that the new type cannot store is stored in `_text`; `unfit` counts
    them. `moment`: where and when the source converted; `unknown`: the first value that cannot be converted, and why.
    """

    def __init__(
        self,
        before: TableDef,
        after: TableDef,
        renamed: Mapping[str, str] = MappingProxyType({}),
        moment: CastMoment = CastMoment(),  # noqa: B008 - frozen
    ) -> None:
        self._before, self._after = before, after
        self._sources = {c.name: _find_source(c, before, renamed) for c in after.row_columns}
        self._copies: dict[str, int] = {}
        self._moment = moment
        self._filled = {former.id: column.name for column, former in find_filled_operands(before, after)}
        self.unfit = 0
        self.unknown = ""

    def keeps_layout(self) -> bool:
        """True when rows do not change: only keys, defaults or comments changed that mirror rows do not show."""
        before, after = self._before, self._after
        kept = [None if s is None else s.name for s in self._sources.values()] == build_schema(before).names[:-4]
        texts = all(s is not None and not may_change(s, c, self._moment) for c, s in self._pair_columns())
        return (
            kept
            and texts
            and build_schema(before).equals(build_schema(after))
            and before.find_identity() == after.find_identity()
        )

    def converts(self) -> bool:
        """True when a column's values are written in another form than before, or those of a new one are not known."""
        pairs = self._pair_columns()
        return any(explain_fill(c, self._moment) if s is None else may_change(s, c, self._moment) for c, s in pairs)

    def find_appended_fields(self) -> list[pa.Field] | None:
        """The fields to append if the only change is NULL columns without a default added at the end; else None."""
        known, new = self._after.row_columns[: len(self._before.row_columns)], []
        for column in self._after.row_columns[len(known) :]:
            plain = self._sources[column.name] is None and not explain_fill(column, self._moment)
            if not plain or derive_filled_text(column) is not None:
                return None
            new.append(pa.field(column.name, choose_arrow_type(column)))
        same = len(known) == len(self._before.row_columns) and all(
            s is not None and s.name == c.name and not may_change(s, c, self._moment)
            for c, s in self._pair_columns()[: len(known)]
        )
        return new if same and self._before.find_identity() == self._after.find_identity() else None

    def reshape_batches(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The reshaped rows, batch by batch."""
        for batch in rows:
            yield from self._reshape(pa.Table.from_batches([batch])).to_batches()

    def _reshape(self, rows: pa.Table) -> pa.Table:
        old = read_mirror_texts(self._before, rows)
        texts = {c.name: self._convert_texts(c, s, old, rows.num_rows) for c, s in self._pair_columns()}
        keys = build_row_keys(self._after, texts)
        typed = build_typed_rows(
            self._after,
            texts,
            rows.column(Mirror.COMMIT_TS).to_pylist(),
            [self._assign_copy_number(key) for key in keys],
        )
        self.unfit += sum(kept is not None for kept in typed.column(Mirror.TEXT).to_pylist())
        return typed

    def _pair_columns(self) -> list[tuple[ColumnInfo, ColumnInfo | None]]:
        return [(column, self._sources[column.name]) for column in self._after.row_columns]

    def _convert_texts(
        self, column: ColumnInfo, source: ColumnInfo | None, old: Columns, rows: int
    ) -> list[str | None]:
        if source is None:
            self.unknown = self.unknown or (explain_fill(column, self._moment) if rows else "")
            return [derive_filled_text(column)] * rows
        found, unknown = recast(source, column, old[source.name], self._moment)
        self.unknown = self.unknown or "".join(unknown) or self._explain_filled(source, old[source.name], found)
        return found

    def _explain_filled(self, source: ColumnInfo, old: Sequence[str | None], new: Sequence[str | None]) -> str:
        """Why values of a stored generated column are not known if NULLs that it reads became zeros; else ""."""
        reader = self._filled.get(source.id)
        if reader is None or not any(a is None and b is not None for a, b in zip(old, new, strict=True)):
            return ""
        return f"the source computed {reader} anew where {source.name} was NULL"

    def _assign_copy_number(self, key: str) -> int:
        # Keyed rows are unique. Equal keyless rows are distinguished by a number.
        if self._after.find_identity().kind != "row":
            return 0
        number = self._copies.get(key, 0)
        self._copies[key] = number + 1
        return number


def _find_source(column: ColumnInfo, before: TableDef, renamed: Mapping[str, str]) -> ColumnInfo | None:
    by_id = next((c for c in before.row_columns if c.id == column.id), None)
    name = fold_name(column.name)
    return by_id or next((c for c in before.row_columns if fold_name(c.name) == renamed.get(name, name)), None)
