"""Reads payloads of landed transactions directly from the files of `binlog`, in any process and without a JVM.

A window's files are split into shares of complete row groups; the reader of a share reads only these. A transaction
stored in chunks, which may be in several files, is a separate share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlake.base.lakecolumns import Binlog
from binlake.lake.damage import name_damaged_file

SHARE_BYTES = 8 << 20
"""Minimum bytes of binlogs in a share. For fewer, starting a task costs more than it saves."""
MOST_SHARES = 128
"""Maximum shares of a window. With more bytes, each share grows. A share writes one file per day."""
READ_BYTES = 8 << 20
"""Average bytes of binlogs read at a time, or one row."""
_COLUMNS = [Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK, Binlog.KIND, Binlog.PAYLOAD]
_READ = [Binlog.COMMIT_TS, Binlog.START_TS, Binlog.PAYLOAD]


@dataclass(frozen=True)
class Span:
    """Row groups of one file."""

    file: str
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """Row groups to be read together. If `whole` is set, only the chunks of that commit_ts."""

    spans: tuple[Span, ...]
    whole: int | None = None


@dataclass(frozen=True)
class PayloadRange:
    """The row changes, without DDL, with lo < commit_ts <= hi and a commit_ts not in `without`.

    `chunked`: the commit_ts of transactions stored in chunks.
    """

    lo: int
    hi: int
    without: frozenset[int] = frozenset()
    chunked: frozenset[int] = frozenset()

    def split_into_shares(self, files: Iterable[str]) -> list[Share]:
        """Split `files` of `binlog` into shares of similar size, without row groups that are outside the range."""
        groups = [found for file in sorted(files) for found in self._find_groups(file)]
        most = max(SHARE_BYTES, -(-sum(group.bytes for group in groups) // MOST_SHARES))
        shares: list[Share] = []
        pending: list[_Rows] = []
        for group in groups:
            pending.append(group)
            if sum(one.bytes for one in pending) >= most:
                shares.append(Share(_group_spans(pending)))
                pending = []
        shares += [Share(_group_spans(pending))] if pending else []
        chunked = sorted(ts for ts in self.chunked - self.without if self.lo < ts <= self.hi)
        return shares + [Share(_group_spans(group for group in groups if group.may_have(ts)), ts) for ts in chunked]

    def _find_groups(self, file: str) -> Iterator[_Rows]:
        """The row groups of `file` that may have rows of the range."""
        with name_damaged_file(file):
            metadata = pq.read_metadata(file)
        column = metadata.schema.names.index(Binlog.COMMIT_TS)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            known = group.column(column).statistics
            bounds = (known.min, known.max) if known is not None and known.has_min_max else None
            if bounds is None or (bounds[1] > self.lo and bounds[0] <= self.hi):
                yield _Rows(file, number, group.total_byte_size, bounds)

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        """(commit_ts, start_ts, payload) of the share's rows in the range, in batches of some MiB."""
        if share.whole is None:
            for batch in _read_batches(share.spans):
                yield self._select_wanted(batch)
        else:
            yield _join_chunks(
                batch.filter(pc.equal(batch[Binlog.COMMIT_TS], share.whole)) for batch in _read_batches(share.spans)
            )

    def _select_wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        commit_ts = np.asarray(batch.column(Binlog.COMMIT_TS))
        wanted = (commit_ts > self.lo) & (commit_ts <= self.hi)
        wanted &= np.asarray(pc.equal(batch.column(Binlog.KIND), "dml"))
        if self.without or self.chunked:
            wanted &= ~np.isin(commit_ts, list(self.without | self.chunked))
        selected = batch.select(_READ)
        return selected if wanted.all() else selected.filter(pa.array(wanted))


@dataclass(frozen=True)
class _Rows:
    """A row group, and its minimum and maximum commit_ts if known."""

    file: str
    number: int
    bytes: int
    bounds: tuple[int, int] | None

    def may_have(self, commit_ts: int) -> bool:
        return self.bounds is None or self.bounds[0] <= commit_ts <= self.bounds[1]


def _group_spans(groups: Iterable[_Rows]) -> tuple[Span, ...]:
    groups_of_file: dict[str, list[int]] = {}
    for group in groups:
        groups_of_file.setdefault(group.file, []).append(group.number)
    return tuple(Span(file, tuple(numbers)) for file, numbers in groups_of_file.items())


def _read_batches(spans: Collection[Span]) -> Iterator[pa.RecordBatch]:
    for span in spans:
        with name_damaged_file(span.file), pq.ParquetFile(span.file) as file:
            for number in span.groups:
                group = file.metadata.row_group(number)
                rows = max(1, READ_BYTES * group.num_rows // max(1, group.total_byte_size))
                yield from file.iter_batches(rows, [number], _COLUMNS, use_threads=False)


def _join_chunks(chunks: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Join the chunks of a transaction, given in any order, to one row."""
    rows = pa.Table.from_batches(chunks).sort_by(Binlog.CHUNK)
    payload = b"".join(rows[Binlog.PAYLOAD].to_pylist())
    return (
        rows.slice(0, 1).select(_READ).set_column(2, Binlog.PAYLOAD, pa.array([payload], pa.binary())).to_batches()[0]
    )
