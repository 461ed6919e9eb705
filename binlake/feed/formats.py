"""The interface of protocols: converts row changes of one table and kind, as columns, to message keys and values.

Rule: a format does not handle order, topics and partitions; `messages` does this for all formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlake.common.lakecolumns import Mutation
from binlake.ddl.definitions import LandedDdl
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.statements.maps import ImageMaps

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
Images = Mapping[str, Array]
"""By column, the canonical texts of all rows (`statements.maps.build_images_from_maps`)."""
INSERT, UPDATE, DELETE = "c", "u", "d"
"""The kinds of a row change, as in the column `op` of messages."""


@dataclass(frozen=True)
class Changes:
    """Row changes of `table`, all of kind `op`, in commit order.

    `rows`: rows of `mutation` without images. The images are in `maps` at `places` and are copied by column when
    needed.
    """

    table: TableDef
    op: str
    rows: pa.RecordBatch
    maps: Mapping[str, ImageMaps]
    places: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def commit_ts(self) -> Array:
        """The commit_ts of each change, int64."""
        return self.rows.column(Mutation.COMMIT_TS)

    def select_before(self, columns: Sequence[ColumnInfo]) -> Images:
        """`columns` of the rows before the change: for updates and deletions."""
        return self._select_images(Mutation.BEFORE, columns)

    def select_after(self, columns: Sequence[ColumnInfo]) -> Images:
        """`columns` of the rows after the change: for insertions and updates."""
        return self._select_images(Mutation.AFTER, columns)

    def select_last(self, columns: Sequence[ColumnInfo]) -> Images:
        """`columns` of the row after the change, or of the deleted row."""
        return self.select_before(columns) if self.op == DELETE else self.select_after(columns)

    def _select_images(self, side: str, columns: Sequence[ColumnInfo]) -> Images:
        return self.maps[side].take_columns([column.name for column in columns], self.places)


class Bodies(NamedTuple):
    """Keys and values of messages as binary arrays; NULL = no key or value."""

    keys: Array
    values: Array


class MessageSchemas(NamedTuple):
    """The texts of a table's message schemas in the registry; None if the protocol has no schemas."""

    key: str | None = None
    value: str | None = None


class FeedEvent(NamedTuple):
    """A message other than a row change. `everywhere`: it goes to all partitions of its topic, else to the first."""

    key: bytes | None
    value: bytes | None
    everywhere: bool


class Format(Protocol):
    """A protocol with its options.

    `splits_moves`: an update that changes the row's key is sent as a deletion and an insertion. `one_partition`: all
    messages go to the first partition of their topic. `whole_transactions`: `assemble` needs all messages of a
    transaction.
    """

    @property
    def splits_moves(self) -> bool: ...

    @property
    def one_partition(self) -> bool: ...

    @property
    def whole_transactions(self) -> bool: ...

    def build_schemas(self, table: TableDef, /) -> MessageSchemas:
        """The schemas of the table's messages. Raises ConfigError for a table that cannot be sent."""

    def encode(self, changes: Changes) -> Bodies:
        """The messages of `changes`, in their order. Raises SchemaError for a row that does not fit its definition."""

    def assemble(self, messages: pa.Table) -> pa.Table:
        """The messages to send for `messages`, which are complete transactions in order; usually unchanged."""

    def encode_ddl(self, ddl: LandedDdl, /) -> FeedEvent | None:
        """The message of a DDL; None if the protocol has none."""

    def encode_watermark(self, ts: int, /) -> FeedEvent | None:
        """The message that everything at or below `ts` has been sent; None if the protocol has none."""


class RowFormat:
    """The defaults of most protocols: only rows, one message each, moves are split, no schemas."""

    splits_moves = True
    one_partition = False
    whole_transactions = False

    def build_schemas(self, _table: TableDef, /) -> MessageSchemas:
        """No schemas."""
        return MessageSchemas()

    def assemble(self, messages: pa.Table) -> pa.Table:
        """`messages` unchanged."""
        return messages

    def encode_ddl(self, _ddl: LandedDdl, /) -> FeedEvent | None:
        """None."""
        return None

    def encode_watermark(self, _ts: int, /) -> FeedEvent | None:
        """None."""
        return None


def choose_columns_to_send(changes: Changes, *, delete_keys_only: bool) -> tuple[ColumnInfo, ...]:
    """All columns of the row; for a deletion with `delete_keys_only`, only those of the key, if there is one."""
    columns = changes.table.row_columns
    return (find_row_key(changes.table) or columns) if delete_keys_only and changes.op == DELETE else columns


def find_row_key(table: TableDef) -> tuple[ColumnInfo, ...]:
    """The columns that identify a row; empty for a table without a key."""
    identity = table.find_identity()
    names = set(identity.columns) if identity.kind != "row" else set()
    return tuple(column for column in table.row_columns if column.name in names)
