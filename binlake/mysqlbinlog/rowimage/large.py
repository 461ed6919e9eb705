"""Encodes one large transaction a few MiB at a time into a file; the bytes are those of `encode_transactions`.

A mutation has its inserted rows first, then the updated and the deleted ones, then their sequence, and before them its
length. So what it consists of is written to the file as it is encoded, and its pieces are named in their order once it
has all of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from binlake.common.spool import MessagePiece, SpoolFile, SpoolPiece
from binlake.mysqlbinlog.charsets import InvalidText
from binlake.mysqlbinlog.model import RowsEvent
from binlake.mysqlbinlog.rowimage.shape import Shape
from binlake.mysqlbinlog.rowimage.transactions import (
    DefinitionOf,
    EventShapes,
    Guard,
    MutationEntries,
    encode_events,
    encode_mutation,
    encode_mutation_head,
    encode_table_head,
    encode_version,
)

_AT_ONCE = 4 << 20  # bytes of rows
_SEQUENCE = 3  # the order of the sequence, after the three lists of rows
_Spans = tuple[list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int]]]
"""Begins and ends in the file of what a mutation consists of, by its order."""


def encode_in_pieces(
    changes: Iterable[RowsEvent],
    file: SpoolFile,
    definition_of: DefinitionOf,
    schema_version: int,
    on_rows: Callable[[int], None] = lambda _: None,
    guard: Guard | None = None,
    invalid_text: InvalidText = "refuse",
) -> tuple[MessagePiece, ...]:
    """The pieces, most of them in `file`, of the PrewriteValue of a transaction; none without included changes.

    `changes` are read once; `on_rows` is called with numbers of rows that together are all, `guard` with each event.

    Raises what `encode_transactions` raises, and BinlakeError when the disk is full or fails.
    """
    shape_by_event = EventShapes(definition_of, invalid_text).find_shape
    value, rows = _ValueWriter(file), 0

    def count(number: int) -> None:
        nonlocal rows
        rows += number
        on_rows(number)

    for events in _cut(changes):
        shaped: list[tuple[RowsEvent, Shape]] = []
        for event in events:
            shape = shape_by_event(event)
            if guard is not None:
                guard(event, shape)
            if shape is not None:
                shaped.append((event, shape))
        value.add(encode_events(shaped, [0, len(shaped)], count, rows))
    pieces = value.finish()
    return (encode_version(schema_version), *pieces) if pieces else ()


def _cut(changes: Iterable[RowsEvent]) -> Iterator[list[RowsEvent]]:
    events, size = list[RowsEvent](), 0
    for event in changes:
        events.append(event)
        size += len(event.rows)
        if size >= _AT_ONCE:
            yield events
            events, size = [], 0
    if events:
        yield events


class _ValueWriter:
    """The mutations of one value. The last one stays open: the next rows may belong to it."""

    _table_id: int  # of the open one

    def __init__(self, file: SpoolFile) -> None:
        self._file = file
        self._pieces: list[MessagePiece] = []
        self._open: _Spans = ([], [], [], [])
        self._whole: tuple[int, int] | None = None  # mutations before the open one, which follow each other in the file

    def add(self, parts: list[MutationEntries]) -> None:
        """Add the next rows of the transaction."""
        groups = [(table_id, list(own)) for table_id, own in groupby(parts, key=itemgetter(0))]
        for number, (table_id, own) in enumerate(groups):
            if self._is_open() and table_id != self._table_id:
                self._close()
            if self._is_open() or number == len(groups) - 1:
                self._extend(table_id, own)
            else:
                self._write_whole(b"".join(encode_mutation(table_id, own)))

    def finish(self) -> list[MessagePiece]:
        """The pieces of all mutations."""
        if self._is_open():
            self._close()
        return self._pieces

    def _is_open(self) -> bool:
        return bool(self._open[_SEQUENCE])

    def _extend(self, table_id: int, parts: list[MutationEntries]) -> None:
        self._table_id = table_id
        for order in range(_SEQUENCE):
            if own := [part.data for part in parts if part.order == order]:
                self._put(order, b"".join(own))
        self._put(_SEQUENCE, b"".join([part.sequence for part in parts]))

    def _put(self, order: int, data: bytes) -> None:
        begin = self._file.append(data)
        self._open[order].append((begin, begin + len(data)))

    def _close(self) -> None:
        if self._whole is not None:
            self._pieces.append(self._build_piece(*self._whole))
            self._whole = None
        head, spans = encode_table_head(self._table_id), [span for order in self._open for span in order]
        self._pieces.append(encode_mutation_head(len(head) + sum(end - begin for begin, end in spans)) + head)
        self._pieces += [self._build_piece(begin, end) for begin, end in spans]
        self._open = ([], [], [], [])

    def _write_whole(self, data: bytes) -> None:
        begin = self._file.append(data)
        self._whole = begin if self._whole is None else self._whole[0], begin + len(data)

    def _build_piece(self, begin: int, end: int) -> SpoolPiece:
        return SpoolPiece(self._file, begin, end - begin)
