"""Reads the messages that encode sealed, in order and in parts of limited size, and counts what is sent.

Rule: no message is returned before the digest of its whole window is verified. A window that fits into one part is read
once. A larger window is read once for its digest and the bounds of parts, and then part by part from the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from binlake.common import rowhash
from binlake.common.lakecolumns import Message
from binlake.errors import ImmutableWindow
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.messages import ORDER
from binlake.lake.opentable import open_dataset, open_known
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MESSAGE, build_message_table

Ints = npt.NDArray[np.int64]
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def sort_rows(rows: Rows, columns: Sequence[str]) -> Rows:
    """`rows` sorted by `columns`."""
    order = compute_order(stack_places(rows, columns))
    return rows if (np.diff(order) == 1).all() else rows.take(pa.array(order))


def stack_places(rows: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Ints:
    """A matrix with each row's values of `columns`."""
    return np.column_stack([np.asarray(rows.column(name)).astype(np.int64) for name in columns])


def compute_order(places: Ints) -> Any:
    """The indices that sort `places`."""
    return np.lexsort(places.T[::-1])


PART_BYTES = 16 << 20
"""Approximate size of a part (keys and values) in bytes; a few parts are in memory at the same time."""
_SAMPLE_BYTES = 64 << 10
"""One position per this many bytes of a batch is remembered, which is enough to find the bounds of parts."""
_BATCH_ROWS = 8192
_ROW_BYTES = 100
"""Estimated size of a message without key and value, in bytes."""
_PLACE = ORDER[:3]
_REPEATED = (Message.DB, Message.TABLE, Message.OP, Message.TOPIC, Message.KEY_SCHEMA, Message.VALUE_SCHEMA)


def read_sealed(paths: LakePaths, manifest: EncodeManifest, after: ChangePosition | None) -> Iterator[pa.Table]:
    """The messages of `manifest` after `after`, in order; a change is never split. Raises ImmutableWindow."""
    data = open_dataset(open_known(paths.locate_table(build_message_table(manifest.feed).name)), _REPEATED)
    condition = ds.field(Message.WINDOW) == manifest.window
    survey = _Survey()
    for batch in data.to_batches(
        columns=MESSAGE.list_column_names(),
        filter=condition,
        batch_size=_BATCH_ROWS,
        batch_readahead=1,
        fragment_readahead=1,
    ):
        survey.add(batch)
    if survey.compute_digest() != manifest.digest:
        raise ImmutableWindow(
            "the messages in the lake differ from those that encode sealed",
            where={"feed": manifest.feed, "window": manifest.window},
            hint="run encode of that window again",
        )
    if survey.batches == []:
        return
    if survey.batches is not None:
        messages = pa.Table.from_batches(survey.batches)
        parts = iter([messages if after is None else messages.filter(_build_condition_after(after))])
    else:
        parts = (
            data.to_table(columns=MESSAGE.list_column_names(), filter=condition & where)
            for where in _build_range_conditions(survey.find_cuts(), after)
        )
    for part in parts:
        if part.num_rows:
            yield sort_rows(part, ORDER)


def split_changes(messages: pa.Table, most: int) -> Iterator[pa.Table]:
    """Split `messages` into parts of `most` rows, or one more to keep a moved key's two messages together."""
    start, parts = 0, np.asarray(messages.column(Message.PART))
    while start < messages.num_rows:
        end = min(start + most, messages.num_rows)
        end += int(end < messages.num_rows and parts[end] == 1 and parts[end - 1] == 0)
        yield messages.slice(start, end - start)
        start = end


def find_last_position(messages: pa.Table) -> ChangePosition:
    """The position of the last of `messages`."""
    return ChangePosition(*(messages.column(name)[-1].as_py() for name in _PLACE))


@dataclass
class _Survey:
    """The results of one pass over a window. `batches`: its batches, or None if they do not fit into one part."""

    batches: list[pa.RecordBatch] | None = field(default_factory=list)
    _folds: list[rowhash.Fold] = field(default_factory=list)
    _places: list[Ints] = field(default_factory=list)
    _weights: list[Ints] = field(default_factory=list)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._folds.append(rowhash.fold(rowhash.hash_rows(batch, MESSAGE.list_column_names())))
        places, weights = _sample(batch)
        self._places.append(places)
        self._weights.append(weights)
        self._bytes += int(weights.sum())
        if self._bytes > PART_BYTES:
            self.batches = None
        if self.batches is not None:
            self.batches.append(batch)

    def compute_digest(self) -> str:
        return rowhash.compute_digest(rowhash.merge_folds(self._folds))

    def find_cuts(self) -> list[ChangePosition]:
        """The last position of each part except the last one."""
        places, weights = np.concatenate(self._places), np.concatenate(self._weights)
        order = compute_order(places)
        parts = np.cumsum(weights[order]) // PART_BYTES
        ends = places[order][np.flatnonzero(np.diff(parts))]
        return [ChangePosition(*place) for place in dict.fromkeys(map(tuple, ends.tolist()))]


def _sample(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Some positions of the batch in order, and for each the bytes since the previous one."""
    places = stack_places(batch, _PLACE)
    order = compute_order(places)
    ends = np.cumsum(_measure_sizes(batch)[order])
    last = np.append(np.diff(ends // _SAMPLE_BYTES) > 0, True)
    picked = np.flatnonzero(last)
    return places[order][picked], np.diff(ends[picked], prepend=0)


def _measure_sizes(batch: pa.RecordBatch) -> Ints:
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in (Message.KEY, Message.VALUE)]
    sizes: Ints = np.asarray(lengths[0]).astype(np.int64) + np.asarray(lengths[1]) + _ROW_BYTES
    return sizes


def _build_range_conditions(cuts: list[ChangePosition], after: ChangePosition | None) -> Iterator[ds.Expression]:
    """The conditions of the ranges between `cuts`, after `after`."""
    lows = [after, *(cut for cut in cuts if after is None or cut > after)]
    for low, high in zip(lows, [*lows[1:], None], strict=True):
        where = ds.scalar(True) if low is None else _build_condition_after(low)
        yield where if high is None else where & ~_build_condition_after(high)


def _build_condition_after(place: ChangePosition) -> ds.Expression:
    """The condition that a message comes after `place` in the order of changes."""
    commit_ts, start_ts, seq = (ds.field(name) for name in _PLACE)
    in_start = (start_ts > place.start_ts) | ((start_ts == place.start_ts) & (seq > place.seq))
    return (commit_ts > place.commit_ts) | ((commit_ts == place.commit_ts) & in_start)


MOST_TOPICS = 200
"""The maximum number of topics in a result. With more it names none, as XCom and events must stay small."""


@dataclass
class SentCounts:
    """The number of messages, and the bytes of their keys and values including headers."""

    messages: int = 0
    bytes: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, messages: pa.Table) -> None:
        """Count `messages`."""
        self.messages += messages.num_rows
        self.bytes += sum(_count_bytes(messages.column(name)) for name in (Message.KEY, Message.VALUE))
        self.topics.update(pc.unique(messages.column(Message.TOPIC)).to_pylist())

    def include(self, other: SentCounts) -> None:
        """Add the counts of another window."""
        self.messages, self.bytes = self.messages + other.messages, self.bytes + other.bytes
        self.topics |= other.topics

    def build_detail(self) -> Mapping[str, Any]:
        """The counts for an event and a result."""
        return {"bytes": self.bytes, "topics": sorted(self.topics) if len(self.topics) <= MOST_TOPICS else []}


def _count_bytes(column: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
