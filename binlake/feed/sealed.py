"""The messages that encode sealed, read back in their order and in parts of bounded size.

Rule: no message leaves before the digest of its whole window is proven. A window that fits into one part is read once;
a larger one is read for its digest and for where to cut it, then part by part from the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from binlake.base import rowhash
from binlake.base.lakecolumns import Message
from binlake.errors import ImmutableWindow
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import ORDER
from binlake.feed.position import Position
from binlake.feed.roworder import Ints, order_of_places, places_of_rows, sort_rows
from binlake.lake.dataset import open_dataset
from binlake.lake.opentable import open_table
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MESSAGE, message_table

PART_BYTES = 16 << 20
"""Bytes of keys and values of a part, about: what is in memory at once, a few times over."""
_SAMPLE_BYTES = 64 << 10
"""Of each batch a place is kept for so many bytes: enough to cut by."""
_BATCH_ROWS = 8192
_ROW_BYTES = 100
"""What a message takes beside key and value."""
_PLACE = ORDER[:3]
_REPEATED = (Message.DB, Message.TABLE, Message.OP, Message.TOPIC, Message.KEY_SCHEMA, Message.VALUE_SCHEMA)


def read_sealed(paths: LakePaths, manifest: EncodeManifest, after: Position | None) -> Iterator[pa.Table]:
    """The messages of `manifest` behind `after`, in order; a change is never cut. Raises ImmutableWindow."""
    data = open_dataset(open_table(paths.table(message_table(manifest.feed).name)), _REPEATED)
    own = ds.field(Message.WINDOW) == manifest.window
    survey = _Survey()
    for batch in data.to_batches(
        columns=MESSAGE.column_names(), filter=own, batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
    ):
        survey.add(batch)
    if survey.digest() != manifest.digest:
        raise ImmutableWindow(
            "the messages in the lake differ from those that encode sealed",
            where={"feed": manifest.feed, "window": manifest.window},
            hint="run encode of that window again",
        )
    if survey.held == []:
        return
    if survey.held is not None:
        whole = pa.Table.from_batches(survey.held)
        parts = iter([whole if after is None else whole.filter(_is_behind(after))])
    else:
        parts = (
            data.to_table(columns=MESSAGE.column_names(), filter=own & where) for where in _ranges(survey.cuts(), after)
        )
    for part in parts:
        if part.num_rows:
            yield sort_rows(part, ORDER)


def split_changes(messages: pa.Table, most: int) -> Iterator[pa.Table]:
    """`messages` in parts of `most` rows, or one more: the deletion of a moved key goes with the row that follows."""
    start, parts = 0, np.asarray(messages.column(Message.PART))
    while start < messages.num_rows:
        end = min(start + most, messages.num_rows)
        end += int(end < messages.num_rows and parts[end] == 1 and parts[end - 1] == 0)
        yield messages.slice(start, end - start)
        start = end


def last_position(messages: pa.Table) -> Position:
    """Of the last of `messages`."""
    return Position(*(messages.column(name)[-1].as_py() for name in _PLACE))


@dataclass
class _Survey:
    """What one pass over a window learns. `held`: its batches, as long as they fit into one part."""

    held: list[pa.RecordBatch] | None = field(default_factory=list)
    _folds: list[rowhash.Fold] = field(default_factory=list)
    _places: list[Ints] = field(default_factory=list)
    _weights: list[Ints] = field(default_factory=list)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._folds.append(rowhash.fold(rowhash.row_hashes(batch, MESSAGE.column_names())))
        places, weights = _sample(batch)
        self._places.append(places)
        self._weights.append(weights)
        self._bytes += int(weights.sum())
        if self._bytes > PART_BYTES:
            self.held = None
        if self.held is not None:
            self.held.append(batch)

    def digest(self) -> str:
        return rowhash.digest_of(rowhash.merge_folds(self._folds))

    def cuts(self) -> list[Position]:
        """The last place of each part but the last one."""
        places, weights = np.concatenate(self._places), np.concatenate(self._weights)
        order = order_of_places(places)
        parts = np.cumsum(weights[order]) // PART_BYTES
        ends = places[order][np.flatnonzero(np.diff(parts))]
        return [Position(*place) for place in dict.fromkeys(map(tuple, ends.tolist()))]


def _sample(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Some places of the batch in their order, and the bytes from each one's predecessor up to it."""
    places = places_of_rows(batch, _PLACE)
    order = order_of_places(places)
    ends = np.cumsum(_sizes(batch)[order])
    last = np.append(np.diff(ends // _SAMPLE_BYTES) > 0, True)
    picked = np.flatnonzero(last)
    return places[order][picked], np.diff(ends[picked], prepend=0)


def _sizes(batch: pa.RecordBatch) -> Ints:
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in (Message.KEY, Message.VALUE)]
    sizes: Ints = np.asarray(lengths[0]).astype(np.int64) + np.asarray(lengths[1]) + _ROW_BYTES
    return sizes


def _ranges(cuts: list[Position], after: Position | None) -> Iterator[ds.Expression]:
    """The places between each two cuts, of those behind `after`."""
    lows = [after, *(cut for cut in cuts if after is None or cut > after)]
    for low, high in zip(lows, [*lows[1:], None], strict=True):
        where = ds.scalar(True) if low is None else _is_behind(low)
        yield where if high is None else where & ~_is_behind(high)


def _is_behind(place: Position) -> ds.Expression:
    """Of a message, that it comes after `place` in the order of changes."""
    commit_ts, start_ts, seq = (ds.field(name) for name in _PLACE)
    in_start = (start_ts > place.start_ts) | ((start_ts == place.start_ts) & (seq > place.seq))
    return (commit_ts > place.commit_ts) | ((commit_ts == place.commit_ts) & in_start)
