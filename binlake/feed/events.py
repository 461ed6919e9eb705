"""A window's messages other than row changes: its DDL, and the watermark at its end.

Rule: a DDL comes before the rows with its definition, a watermark after everything of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from binlake.ddl.definitions import LandedDdl
from binlake.feed.formats import FeedEvent, Format
from binlake.feed.messages import FIRST_PARTITION, MESSAGE_SCHEMA
from binlake.rules.topics import Topics

DDL, WATERMARK = "ddl", "watermark"
"""Values of `op` besides the kinds of a row change."""
_BEHIND_ALL = (1 << 63) - 1
_WHOLE = 1

Takes = Callable[[str, str], bool]
"""Tells whether a feed sends the table (db, table)."""


def encode_ddls(format_: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> pa.Table:
    """The messages of DDL that is not skipped, each once per topic of its tables (MESSAGE_SCHEMA)."""
    rows: list[dict[str, object]] = []
    for ddl in ddls:
        event = format_.encode_ddl(ddl) if ddl.decision != "skip" else None
        for topic in sorted(_find_topics(ddl, topics, takes)) if event is not None else ():
            rows.append(_build_row((ddl.since, 0, len(rows)), (ddl.db, ddl.table), DDL, topic, event))
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def count_unsent(format_: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> int:
    """The number of DDL without a message in `encode_ddls`."""
    return sum(not encode_ddls(format_, topics, takes, [ddl]).num_rows for ddl in ddls)


def encode_watermarks(format_: Format, topics: Iterable[str], hi: int) -> pa.Table:
    """A message for each of `topics` that no change at or below `hi` will follow (MESSAGE_SCHEMA)."""
    event = format_.encode_watermark(hi)
    named = sorted(set(topics)) if event is not None else ()
    rows = [
        _build_row((hi, _BEHIND_ALL, number), ("", ""), WATERMARK, topic, event) for number, topic in enumerate(named)
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def _find_topics(ddl: LandedDdl, topics: Topics, takes: Takes) -> set[str]:
    # A DDL on a database is treated as one on a table with an empty name.
    return {topics.find_topic(*name) for name in ddl.tables or {(ddl.db, "")} if takes(*name)}


def _build_row(
    position: tuple[int, int, int], name: tuple[str, str], op: str, topic: str, event: FeedEvent | None
) -> dict[str, object]:
    key, value, everywhere = event or (None, None, True)
    number = None if everywhere else FIRST_PARTITION
    row = (*position, _WHOLE, *name, op, topic, number, None, None, key, value)
    return dict(zip(MESSAGE_SCHEMA.names, row, strict=True))
