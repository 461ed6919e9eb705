"""Filters row changes between two snapshots of a load: passes on those that affect rows read by the earlier snapshot.

A row that is read later already includes its change. So a change of a row that is not read yet is dropped, and an
update that moves a row from a range that is read to one that is not, or back, becomes a delete or an insert. So at each
position of the log, the rows read so far are a part of what the source had there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from binlake.rows.codec import datum as d
from binlake.rows.codec.tabledecoder import Image, TableDecoder, look_up_decoder
from binlake.rows.codec.transaction import read_rows
from binlake.rows.codec.values import skip
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.wire import binlog_pb2 as pb

IsRead = Callable[[str], bool]
"""Whether the row with a key, given the text of the key's first column, has been read."""


_FIRST_HANDLE = 1 << 40
"""First handle of inserts without their own: distinct from those of rows in the log."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A change of a row: its bytes, and the first column of its key before and after; None if there is none."""

    kind: pb.MutationType
    data: bytes
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class PartlyReadTable:
    """A table of which a part has been read, and the column whose ranges define that part."""

    table: TableDef
    column: ColumnInfo


def iterate_changed_keys(value: pb.PrewriteValue, tables: Mapping[int, PartlyReadTable]) -> Iterator[tuple[int, str]]:
    """(table id, text of the key's first column) before and after each change of these tables. Raises WireError."""
    for mutation in value.mutations:
        part = tables.get(mutation.table_id)
        for row in _decode_rows(mutation, part) if part else ():
            yield from ((mutation.table_id, text) for text in (row.before, row.after) if text is not None)


def filter_read_rows(
    value: pb.PrewriteValue, tables: Mapping[int, PartlyReadTable], is_read: Mapping[int, IsRead]
) -> bytes:
    """`value` without changes of rows of `tables` that are not read yet; b"" if nothing remains."""
    mutations = [
        mutation
        if (part := tables.get(mutation.table_id)) is None
        else _filter_mutation(mutation, part, is_read[part.table.id])
        for mutation in value.mutations
    ]
    left = [mutation for mutation in mutations if mutation.sequence]
    return pb.PrewriteValue(schema_version=value.schema_version, mutations=left).SerializeToString() if left else b""


def _filter_mutation(mutation: pb.TableMutation, part: PartlyReadTable, is_read: IsRead) -> pb.TableMutation:
    filtered = pb.TableMutation(table_id=mutation.table_id)
    for number, row in enumerate(_decode_rows(mutation, part)):
        before = row.before is not None and is_read(row.before)
        after = row.after is not None and is_read(row.after)
        if row.kind != pb.Update:
            if before or after:
                _add(filtered, row.kind, row.data)
        elif before and after:
            _add(filtered, pb.Update, row.data)
        elif before:
            _add(filtered, pb.DeleteRow, row.data[: _find_middle(row.data)])
        elif after:
            _add(filtered, pb.Insert, _handle(part.table, row, number) + row.data[_find_middle(row.data) :])
    return filtered


def _add(mutation: pb.TableMutation, kind: pb.MutationType, data: bytes) -> None:
    lists = {
        pb.Insert: mutation.inserted_rows,
        pb.Update: mutation.updated_rows,
        pb.DeleteRow: mutation.deleted_rows,
    }
    lists[kind].append(data)
    mutation.sequence.append(kind)


def _decode_rows(mutation: pb.TableMutation, part: PartlyReadTable) -> Iterator[_Row]:
    decoder, name = look_up_decoder(part.table), part.column.name
    rows = read_rows(mutation, 0)
    lists = {pb.Insert: iter(rows.inserts), pb.Update: iter(rows.updates), pb.DeleteRow: iter(rows.deletes)}
    for kind in mutation.sequence:
        data = next(lists[kind])
        before, after = _decode_images(decoder, kind, data)
        yield _Row(kind, data, _look_up_text(before, name), _look_up_text(after, name))


def _decode_images(decoder: TableDecoder, kind: pb.MutationType, data: bytes) -> Sequence[Image | None]:
    if kind == pb.Update:
        return decoder.update(data)
    return (None, decoder.insert(data)) if kind == pb.Insert else (decoder.delete(data), None)


def _look_up_text(image: Image | None, name: str) -> str | None:
    return None if image is None else image[1][image[0].index(name)]


def _find_middle(update: bytes) -> int:
    """Where the second half of an update begins: both halves have the same columns."""
    starts, at = list[int](), 0
    while at < len(update):
        starts.append(at)
        at = skip(update, skip(update, at))
    return starts[len(starts) // 2]


def _handle(table: TableDef, row: _Row, number: int) -> bytes:
    if not table.pk_is_handle:
        return d.write_int(_FIRST_HANDLE + number)
    key = int(row.after or 0)
    return d.write_int(key - (1 << 64) if key >> 63 > 0 else key)
