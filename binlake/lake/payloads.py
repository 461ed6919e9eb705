"""Payloads of landed transactions read from the files of `binlog` themselves, in any process and without a JVM.

A window's files are cut into shares of whole groups of rows; who takes a share reads nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SHARE_BYTES = 8 << 20
"""Bytes of binlogs in a share, at least: below it the start of a task costs more than it saves."""
MOST_SHARES = 128
"""Shares of a window at most; above it each grows. A share makes one file a day."""
READ_BYTES = 8 << 20
"""Bytes of binlogs read at a time, on average, or one row."""
_COLUMNS = ["commit_ts", "start_ts", "kind", "payload"]


@dataclass(frozen=True)
class Span:
    """Groups of rows of one file."""

    file: str
    groups: tuple[int, ...]


Share = tuple[Span, ...]


@dataclass(frozen=True)
class PayloadRange:
    """Row changes with lo < commit_ts <= hi whose commit_ts is not among `without`; no DDL."""

    lo: int
    hi: int
    without: frozenset[int] = frozenset()

    def shares(self, files: Iterable[str]) -> list[Share]:
        """`files` of `binlog` without the groups whose statistics exclude the range, in like shares."""
        groups = [found for file in sorted(files) for found in self._groups(file)]
        most = max(SHARE_BYTES, -(-sum(size for _, _, size in groups) // MOST_SHARES))
        shares: list[Share] = []
        held, size = dict[str, list[int]](), 0
        for file, group, more in groups:
            held.setdefault(file, []).append(group)
            size += more
            if size >= most:
                shares.append(_share(held))
                held, size = {}, 0
        return [*shares, _share(held)] if held else shares

    def _groups(self, file: str) -> Iterator[tuple[str, int, int]]:
        """(file, number, bytes) of each group that may have rows of the range."""
        found = pq.read_metadata(file)
        column = found.schema.names.index("commit_ts")
        for number in range(found.num_row_groups):
            group = found.row_group(number)
            known = group.column(column).statistics
            if known is None or not known.has_min_max or (known.max > self.lo and known.min <= self.hi):
                yield file, number, group.total_byte_size

    def read(self, share: Share) -> Iterator[pa.RecordBatch]:
        """(commit_ts, start_ts, payload) of the rows of `share` in the range, some MiB at a time."""
        for span in share:
            with pq.ParquetFile(span.file) as file:
                for number in span.groups:
                    group = file.metadata.row_group(number)
                    rows = max(1, READ_BYTES * group.num_rows // max(1, group.total_byte_size))
                    for batch in file.iter_batches(rows, [number], _COLUMNS, use_threads=False):
                        yield self._only(batch)

    def _only(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        commit_ts = np.asarray(batch.column("commit_ts"))
        wanted = (commit_ts > self.lo) & (commit_ts <= self.hi)
        wanted &= np.asarray(pc.equal(batch.column("kind"), "dml"))
        if self.without:
            wanted &= ~np.isin(commit_ts, list(self.without))
        kept = batch.select(["commit_ts", "start_ts", "payload"])
        return kept if wanted.all() else kept.filter(pa.array(wanted))


def _share(held: dict[str, list[int]]) -> Share:
    return tuple(Span(file, tuple(groups)) for file, groups in held.items())
