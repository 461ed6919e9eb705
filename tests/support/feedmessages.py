"""Messages of a feed as encode writes them, and the manifest that seals them, made without a lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from binlake import tso
from binlake.feed.files.layout import TableVersion
from binlake.feed.files.publisher import Read
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.messages import MESSAGE_SCHEMA


@dataclass(frozen=True)
class Change:
    """One message: its `second` of 2026-01-01, which also identifies its transaction, its table, and its value as
    text.
    """

    second: int
    value: str
    table: str = "item"
    db: str = "shop"
    op: str = "c"

    @property
    def commit_ts(self) -> int:
        """The commit_ts of its transaction."""
        return commit_ts(self.second)


def commit_ts(second: int) -> int:
    """The commit_ts of the transaction of this second."""
    return tso.compose(1_767_225_600_000 + 1000 * second)


def messages_of(changes: Sequence[Change]) -> pa.Table:
    """Rows of `message` in a text protocol, as they are read back: repetitive columns are dictionaries."""
    rows = [
        {
            "commit_ts": change.commit_ts, "start_ts": change.commit_ts - 1, "seq": seq, "part": 1, "db": change.db,
            "table": change.table, "op": change.op, "topic": f"{change.db}.{change.table}", "hash": seq, "key": b"k",
            "value": change.value.encode(),
        }
        for seq, change in enumerate(changes)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)
    for name in ("db", "table", "op", "topic", "key_schema", "value_schema"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).dictionary_encode())
    return table


def window_of(lo: int, hi: int, changes: Sequence[Change], parts: int = 1) -> tuple[EncodeManifest, Read]:
    """The window (second lo, second hi] with its share of `changes`, read in `parts` parts."""
    own = [change for change in changes if lo < change.second <= hi]
    names = sorted({(change.db, change.table) for change in changes})
    tables = [TableVersion(db, table, commit_ts(0), 0).to_json() for db, table in names]
    manifest = EncodeManifest(
        "demo", "files", commit_ts(lo), commit_ts(hi), len(own), 0, f"{own}", {}, "", tables
    )  # fmt: skip

    def read(after: ChangePosition | None) -> Iterator[pa.Table]:
        left = [change for change in own if after is None or change.commit_ts > after.commit_ts]
        size = -(-len(left) // parts) or 1
        for start in range(0, len(left), size):
            yield messages_of(left[start : start + size])

    return manifest, read
