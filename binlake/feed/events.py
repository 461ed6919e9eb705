"""The messages of a window that are no row change: its DDL, and the watermark that ends it.

Rule: a DDL stands before the rows that have its definition, a watermark behind everything of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from binlake.feed.formats import Event, Format
from binlake.feed.messages import FIRST_PARTITION, MESSAGE_SCHEMA
from binlake.rules.topics import Topics
from binlake.window.definitions import LandedDdl

DDL, WATERMARK = "ddl", "watermark"
"""What `op` has besides the kinds of a row change."""
_BEHIND_ALL = (1 << 63) - 1
_WHOLE = 1

Takes = Callable[[str, str], bool]
"""Whether a feed sends the table (db, table)."""


def encode_ddls(own: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> pa.Table:
    """The DDL that are not skipped, each once in every topic of its tables (MESSAGE_SCHEMA)."""
    rows: list[dict[str, object]] = []
    for ddl in ddls:
        event = own.ddl_event(ddl) if ddl.decision != "skip" else None
        for topic in sorted(_topics_of(ddl, topics, takes)) if event is not None else ():
            rows.append(_row((ddl.since, 0, len(rows)), (ddl.db, ddl.table), DDL, topic, event))
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def count_unsent(own: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> int:
    """How many DDL `encode_ddls` makes no message of."""
    return sum(not encode_ddls(own, topics, takes, [ddl]).num_rows for ddl in ddls)


def encode_watermarks(own: Format, topics: Iterable[str], hi: int) -> pa.Table:
    """What says in each of `topics` that nothing at or below `hi` is still to come (MESSAGE_SCHEMA)."""
    event = own.watermark(hi)
    named = sorted(set(topics)) if event is not None else ()
    rows = [_row((hi, _BEHIND_ALL, number), ("", ""), WATERMARK, topic, event) for number, topic in enumerate(named)]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def _topics_of(ddl: LandedDdl, topics: Topics, takes: Takes) -> set[str]:
    # A DDL of a database is that of a table without a name.
    return {topics.topic(*name) for name in ddl.tables or {(ddl.db, "")} if takes(*name)}


def _row(
    place: tuple[int, int, int], name: tuple[str, str], op: str, topic: str, event: Event | None
) -> dict[str, object]:
    key, value, everywhere = event or (None, None, True)
    number = None if everywhere else FIRST_PARTITION
    row = (*place, _WHOLE, *name, op, topic, number, None, None, key, value)
    return dict(zip(MESSAGE_SCHEMA.names, row, strict=True))
