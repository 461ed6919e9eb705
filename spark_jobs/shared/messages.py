"""Writes rows of `mutation` as files of a feed's table: a task takes a range of commit_ts.

It is a module of its own because the imports of the stage would cost each worker more than its work. Only one batch is
in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common import rowhash
from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.lakecolumns import Message, Mutation
from binlake.feed.messages import MessageEncoder
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.tables import MESSAGE, build_message_table
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules.tables import TableMatcher
from binlake.spark_jobs.engine.exchange import OrderedRows

COLUMNS = (
    Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ, Mutation.DB, Mutation.TABLE, Mutation.OP, Mutation.NEW_KEY,
    Mutation.BEFORE, Mutation.AFTER,
)  # fmt: skip
"""The columns of `mutation` from which messages are made."""
GROUP_BYTES = 4 << 20
"""Bytes of a row group of a file: small, so that a reader of a part of a window reads few other rows."""
TRANSACTION = (Mutation.COMMIT_TS, Mutation.START_TS)
ORDER = (*TRANSACTION, Mutation.SEQ)


@dataclass(frozen=True)
class Encoded:
    """The result of writing: files, the fold of their messages, and the schemas that they refer to."""

    parts: list[TablePart]
    fold: rowhash.Fold
    schemas: Mapping[str, str]

    @classmethod
    def sum_parts(cls, parts: Iterable[Encoded]) -> Encoded:
        """The total of all `parts`."""
        every = list(parts)
        schemas = {name: text for one in every for name, text in one.schemas.items()}
        files = [part for one in every for part in one.parts]
        return cls(files, rowhash.merge_folds(one.fold for one in every), schemas)


@dataclass(frozen=True)
class TouchedTables:
    """The definitions, at a window's start, of the tables that it changes; small enough to send to the workers."""

    tables: Mapping[tuple[str, str], TableDef]

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name (case-insensitive), or None."""
        return self.tables.get(fold_pair((db, table)))


@dataclass(frozen=True)
class EncodeTask:
    """Encodes rows of the window `window` with `encoder`, for the tables that `tables` selects, into files in `folder`.

    `feed`: the feed that the table belongs to; `whole`: the encoder needs all rows of a transaction at once.
    """

    encoder: MessageEncoder
    tables: TableMatcher
    feed: str
    window: str
    folder: str
    whole: bool

    def __call__(self, rows: OrderedRows) -> Encoded:
        """Write a range of rows. Raises as `write`."""
        return self.write(rows.read(COLUMNS, ORDER))

    def write(self, batches: Iterable[pa.RecordBatch], events: Iterable[pa.Table] = ()) -> Encoded:
        """Write the messages of `batches` (in the total order), and `events`, which are messages already.

        Raises ConfigError, SchemaError, OSError; after an error no file is left.
        """
        folds: list[rowhash.Fold] = []
        own = (part for batch in batches if (part := self._select_rows(batch)).num_rows)
        parts = write_parts(
            self.folder,
            build_message_table(self.feed),
            chain(self._encode_messages(own, folds), self._add_window(events, folds)),
        )
        return Encoded(parts, rowhash.merge_folds(folds), self.encoder.collect_schemas())

    def _encode_messages(self, batches: Iterable[pa.RecordBatch], folds: list[rowhash.Fold]) -> Iterator[pa.Table]:
        whole = join_transactions(batches) if self.whole else batches
        return self._add_window(map(self.encoder.encode, whole), folds)

    def _add_window(self, encoded: Iterable[pa.Table], folds: list[rowhash.Fold]) -> Iterator[pa.Table]:
        for messages in encoded:
            if messages.num_rows:
                names = pa.repeat(self.window, messages.num_rows)
                rows = messages.append_column(Message.WINDOW, names).select(MESSAGE.list_column_names())
                folds.append(rowhash.fold(rowhash.hash_rows(rows, rows.column_names)))
                step = max(1, GROUP_BYTES * rows.num_rows // rows.nbytes)
                yield from (rows.slice(first, step) for first in range(0, rows.num_rows, step))

    def _select_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the feed's tables."""
        names = pc.binary_join_element_wise(batch.column(Mutation.DB), batch.column(Mutation.TABLE), "\0")
        known = encode_dictionary(names)
        chosen = [self.tables.matches(*name.split("\0")) for name in known.dictionary.to_pylist()]
        return batch if all(chosen) else batch.filter(pa.array(chosen, pa.bool_()).take(known.indices))


def join_transactions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of rows in the total order, cut only between transactions."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        begins = _find_transaction_starts(waiting[-1] if waiting else None, batch)
        if begins:
            yield from _join_batches([*waiting, batch.slice(0, begins[-1])])
            waiting = [batch.slice(begins[-1])]
        else:
            waiting.append(batch)
    yield from _join_batches(waiting)


def _find_transaction_starts(before: pa.RecordBatch | None, batch: pa.RecordBatch) -> list[int]:
    """The row numbers of `batch` at which a transaction begins; `before`: the previous batch."""
    commits, starts = (np.asarray(batch.column(name)) for name in TRANSACTION)
    continues = before is not None and all(before.column(name)[-1] == batch.column(name)[0] for name in TRANSACTION)
    begins = (np.flatnonzero((np.diff(commits) != 0) | (np.diff(starts) != 0)) + 1).tolist()
    return begins if continues else [0, *begins]


def _join_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(rows).combine_chunks().to_batches() if rows else []
