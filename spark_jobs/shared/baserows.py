"""Net changes of a window whose rows all came in blocks of a full load: each row is its own, so none is searched for.

Rule: it holds only for what is seen to be so: all rows are inserts, no key occurs twice, and no table of the target has
two sources. Any other window goes the general way. Neither keys nor digests are built row by row: the rows of a
transaction, which were one block, have one digest, whatever files or batches they lie in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_digest

from binlake.changes.net.columns import NET, combine_into_batch
from binlake.changes.net.events import COLUMNS, SOURCE
from binlake.common.lakecolumns import Change, Mutation
from binlake.common.rowhash import Fold, fold
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.rows.codec.assemble import format_key_texts
from binlake.rows.codec.lanes import read_text_bytes
from binlake.spark_jobs.engine.rows import Rows, SortedRun
from binlake.statements.maps import ImageMaps

_NAMES = (*COLUMNS, *SOURCE)


@dataclass(frozen=True)
class BaseBlock:
    """Inserted rows of one transaction and table, in order: the `maps` of their columns, all with the same names.

    `cell`: the table and segment; `source`: database, name and id of the source's table.
    """

    cell: Cell
    source: tuple[object, ...]
    commit_ts: int
    maps: pa.MapArray

    @property
    def place(self) -> SegmentTable:
        """The table and segment."""
        return SegmentTable(self.cell.segment, self.cell.db, self.cell.table)

    @cached_property
    def images(self) -> ImageMaps:
        """The columns of the rows."""
        return ImageMaps(self.maps)

    @cached_property
    def hash(self) -> int:
        """64 bits that follow from the place, the columns' names, and the values in order."""
        ends = self.maps.offsets
        first, last = ends[0].as_py(), ends[-1].as_py()
        texts = self.maps.items.slice(first, last - first)
        offsets, data = read_text_bytes(pc.fill_null(texts, ""))
        sizes = np.where(np.asarray(texts.is_null()), -1, np.diff(offsets)).astype(np.int32)
        head = "\0".join(map(str, (*self.place, self.commit_ts, *(self.images.names or ())))).encode()
        parts = [xxh3_64_digest(head), xxh3_64_digest(sizes.tobytes()), xxh3_64_digest(data.data)]
        return int.from_bytes(xxh3_64_digest(b"".join(parts)), "big")

    def take_keys(self) -> pa.Array:
        """The key of each row: the text of its column, or those of several joined; NULL where a lone one is NULL."""
        columns = list(self.images.take_columns(self.cell.columns).values())
        return columns[0] if len(columns) == 1 else format_key_texts(columns)


@dataclass(frozen=True)
class BlockRows:
    """The net changes of `blocks` of one table and segment, as Rows; their `key` is empty: nothing reads it."""

    blocks: tuple[BaseBlock, ...]

    @property
    def bytes(self) -> int:
        """As Rows."""
        return sum(block.maps.nbytes for block in self.blocks)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        for block in self.blocks:
            arrays = [_build_column(block, name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([NET.field(name) for name in columns]))

    def list_runs(self) -> list[SortedRun]:
        """As Rows: each block is a piece."""
        return [SortedRun(block.commit_ts, block.commit_ts, BlockRows((block,))) for block in self.blocks]


def _build_column(block: BaseBlock, name: str) -> pa.Array:
    cell, kind = block.cell, NET.field(name).type
    if name == Change.AFTER:
        return block.maps
    values: Mapping[str, object] = {
        Change.SEGMENT: cell.segment,
        Change.DB: cell.db,
        Change.TABLE: cell.table,
        Change.KEY: "",
        Change.IDENTITY: cell.identity,
        Change.OP: "insert" if cell.identity == "row" else "replace",
        Change.BEFORE: None,
        Change.COPIES: 1,
        Change.FIRST_COMMIT_TS: block.commit_ts,
        Change.LAST_COMMIT_TS: block.commit_ts,
        Change.MUTATIONS: 1,
    }
    count = len(block.maps)
    return pa.nulls(count, kind) if values[name] is None else pa.repeat(pa.scalar(values[name], kind), count)


def find_base_blocks(parts: Sequence[Rows], cells: Sequence[Cell]) -> tuple[BaseBlock, ...] | None:
    """The rows of `parts` (of `mutation`) as blocks in commit order; None if they are not only inserts in `cells`, each
    with its own key, or if two source tables write one table.
    """
    blocks: list[BaseBlock] = []
    for batch in _join_transactions(parts):
        block = _build_block(batch, cells)
        if block is None:
            return None
        blocks.append(block)
    by_cell: dict[Cell, list[BaseBlock]] = defaultdict(list)
    for block in blocks:
        by_cell[block.cell].append(block)
    return tuple(blocks) if all(_have_own_keys(cell, own) for cell, own in by_cell.items()) else None


def fold_blocks(blocks: Sequence[BaseBlock]) -> Fold:
    """The fold of the hashes of `blocks`, whatever their order; it counts rows."""
    whole = fold(np.array([block.hash for block in blocks], np.uint64))
    return Fold(sum(len(block.maps) for block in blocks), whole.total, whole.xor)


def _join_transactions(parts: Sequence[Rows]) -> Iterator[pa.RecordBatch]:
    """The rows of each transaction as one batch, in order."""
    pieces = [piece for rows in parts for batch in rows.read(_NAMES) for piece in _cut_by_transaction(batch)]
    pieces.sort(key=lambda piece: piece[:2])
    for _, own in groupby(pieces, key=lambda piece: piece[0]):
        batches = [batch for _, _, batch in own]
        joined = batches[0] if len(batches) == 1 else combine_into_batch(pa.Table.from_batches(batches))
        numbers = np.asarray(joined.column(Mutation.SEQ))
        # The maintenance of the lake sorts rows by key.
        in_order = bool((np.diff(numbers) > 0).all())
        yield joined if in_order else joined.take(pa.array(np.argsort(numbers, kind="stable")))


def _cut_by_transaction(batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """(commit_ts, number of the first row, the rows) of neighbours with the same commit_ts."""
    commits, numbers = (np.asarray(batch.column(name)) for name in (Mutation.COMMIT_TS, Mutation.SEQ))
    ends = [0, *(np.flatnonzero(np.diff(commits)) + 1), len(commits)]
    for first, last in pairwise(ends):
        if last > first:
            yield int(commits[first]), int(numbers[first]), batch.slice(first, last - first)


def _build_block(batch: pa.RecordBatch, cells: Sequence[Cell]) -> BaseBlock | None:
    before, after = batch.column(Mutation.BEFORE), batch.column(Mutation.AFTER)
    if before.null_count < batch.num_rows or after.null_count:
        return None
    names = [_find_only_value(batch.column(name)) for name in (Mutation.DB, Mutation.TABLE, *SOURCE)]
    commit_ts = batch.column(Mutation.COMMIT_TS)[0].as_py()
    cell = next((c for c in cells if [c.db, c.table] == names[:2] and c.since <= commit_ts < c.until), None)
    if cell is None or None in names:
        return None
    block = BaseBlock(cell, tuple(names[2:]), commit_ts, after)
    return block if set(cell.columns) <= set(block.images.names or ()) else None


def _find_only_value(column: pa.Array) -> object:
    """The value that all rows have; None if they differ."""
    return column[0].as_py() if pc.all(pc.equal(column, column[0])).as_py() else None


def _have_own_keys(cell: Cell, blocks: Sequence[BaseBlock]) -> bool:
    """Whether each row has a key that no other one has, and all rows are of one table of the source."""
    if len({block.source for block in blocks}) > 1:
        return False
    keys = pa.chunked_array([block.take_keys() for block in blocks])
    if keys.null_count and cell.identity != "row":
        return False
    return _are_distinct_numbers(keys) or bool(pc.count_distinct(keys, mode="all").as_py() == len(keys))


def _are_distinct_numbers(keys: pa.ChunkedArray) -> bool:
    """Whether all `keys` are whole numbers, no two of them equal: then their texts differ, too. It costs a fifth of
    looking at the texts."""
    if keys.null_count:
        return False
    try:
        # The first one alone: a cast looks at all before it fails.
        keys.slice(0, 1).cast(pa.int64())
        numbers = np.asarray(keys.cast(pa.int64()))
    except pa.ArrowInvalid:
        return False
    # The ranges of a load are sorted each, and few.
    return bool((np.diff(np.sort(numbers, kind="stable")) > 0).all())
