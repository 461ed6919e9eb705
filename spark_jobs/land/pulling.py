"""Pulls a window from all pumps in parallel and in step, until its end or until it has enough bytes.

The pump that is behind by commit_ts is read next, so that few rows lie above the commit_ts that all pumps have passed.
What all pumps have passed is digested as a range before more is pulled, so memory does not grow with the window. If the
pull ends early, hi is lowered to a commit_ts that every pump has passed, so nothing is pulled twice.

What is expected of a window before the pull decides only who pulls it and in how many ranges; what is pulled is proved
in any case. Pumps tell it from their indexes. Of pumps that cannot, the last window's density says how many bytes come
in so much time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from binlake.common.process import give_memory_back
from binlake.lake.tables import BINLOG
from binlake.spark_jobs.engine.engine import SPARK_TASK_BYTES, Keeper, LocalEngine
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.decoding import DecodeAhead
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land.binlogfiles import LargeFiles
from binlake.spark_jobs.land.pulled import Pulled, PulledRange, digest_pulled, sort_rows
from binlake.spark_jobs.land.pump_source import ARROW_SCHEMA, PumpPull, build_proof
from binlake.window.manifest import WindowManifest
from binlake.wire.blocks import Ints

LEAST_RANGES = 2
"""Ranges of a window that Spark pulls: at least two cores work."""
GUESSED_RANGES = 8
"""Most ranges of equal time; one that turns out to be empty costs 20 ms of CPU."""
MOST_RANGES = 64
"""Most ranges of equal bytes; the ranges of a larger window grow."""
log = structlog.get_logger(__name__)
RANGE_BYTES = 64 << 20
"""Payload bytes that are digested at a time."""
SORTED_BYTES = 4 << 20
"""Payload bytes that are brought into order at a time: to sort rows is to copy them."""


@dataclass(frozen=True)
class PulledPart:
    """A part of a pull: all rows with `lo` < commit_ts <= `upto`, and proofs that they are all."""

    rows: pa.Table
    lo: int
    upto: int


def pull_window(
    ctx: StageContext, pull: PumpPull, most_bytes: int, plan_decoding: Callable[[], DecodeAhead | None] = lambda: None
) -> Pulled:
    """What the pumps have of the window, or of its first part: the pull ends at `most_bytes` of payload (0 = no limit).

    As `window.engine` says, this process pulls all of it, or Spark's tasks do, which also decode it as `plan_decoding`
    says. If more comes than was expected, tasks pull the rest. Raises SourceUnavailable, LostRange, WireError.
    """
    folder, here = ctx.paths.locate_table(BINLOG.name), ctx.most_local_bytes
    ranges: list[PulledRange] = []
    expected = _expect(ctx, pull)
    if not ctx.prefers_spark(expected.bytes):
        local = LocalEngine(span=ctx.span)
        is_whole = here is None or 0 < most_bytes <= here
        task = PullTask(pull, folder, local.build_keeper(), most_bytes if is_whole else here or 0)
        [ranges] = local.run(task, [Bounds(pull.lo, pull.hi)])
        reached = ranges[-1].bounds.hi
        if is_whole or reached == pull.hi:
            return Pulled(ranges, folder)
        # What is left of a window whose beginning filled this process is large.
        rest: Sequence[Bounds] = divide(Bounds(reached, pull.hi), GUESSED_RANGES)
    else:
        rest = expected.ranges
        # As one window: what limits the pieces of this process is no limit here.
        most_bytes = most_bytes and (ctx.replication.window.max_bytes or 0)
    engine = ctx.spark_engine
    left = most_bytes and max(1, (most_bytes - sum(one.bytes for one in ranges)) // len(rest))
    decode = plan_decoding() if engine.fuses and not ranges else None
    task = PullTask(pull, folder, engine.build_keeper(), left, decode)
    for asked, found in zip(rest, engine.run(task, rest), strict=True):
        ranges += found
        if found[-1].bounds.hi < asked.hi:
            break
    return Pulled(ranges, folder, decode)


def _expect(ctx: StageContext, pull: PumpPull) -> ExpectedBytes:
    """What the window will have; unknown, without a question, if this process pulls it anyway."""
    if ctx.most_local_bytes is None or not (ctx.has_spark or ctx.prefers_spark(None)):
        return ExpectedBytes(None, ())
    return expect(pull, ctx.windows.read_last_manifest(), SPARK_TASK_BYTES)


@dataclass(frozen=True)
class PullTask:
    """Pulls a range of commit_ts from all pumps and digests it; ends at `most_bytes` of payload (0 = no limit).

    `decode`: how it also decodes the range.
    """

    pull: PumpPull
    folder: str
    keeper: Keeper
    most_bytes: int
    decode: DecodeAhead | None = None

    def __call__(self, bounds: Bounds) -> list[PulledRange]:
        """The range in one or more parts, at least one. Raises SourceUnavailable, LostRange, WireError, OSError."""
        pull, ranges, taken = replace(self.pull, lo=bounds.lo, hi=bounds.hi), list[PulledRange](), 0
        limit = min(self.most_bytes or RANGE_BYTES, RANGE_BYTES)
        with LargeFiles(self.folder) as files, closing(pull_parts(pull, limit, files)) as parts:
            try:
                for part in parts:
                    own = Bounds(part.lo, part.upto)
                    # What the pull has freed, before as much is taken to write.
                    give_memory_back()
                    ranges.append(digest_pulled(part.rows, own, self.folder, self.keeper, self.decode, files))
                    taken += ranges[-1].bytes
                    if self.most_bytes and taken + limit > self.most_bytes:
                        break
            finally:
                files.stop()
        return ranges


def pull_parts(pull: PumpPull, part_bytes: int, files: LargeFiles) -> Generator[PulledPart]:
    """The window in parts with at most `part_bytes` of payload each, but at least one transaction; sorted.

    `files` gets large transactions.
    """
    with ThreadPoolExecutor(max(len(pull.pumps), 1), thread_name_prefix="pull") as pool:
        streams = [
            _Stream(pool, node_id, pull.lo, pull.pull_pump(place, files))
            for place, (node_id, _) in enumerate(pull.pumps)
        ]
        part = _Part(pull.lo, part_bytes)
        for upto in _find_steps(streams, pull.hi, part):
            size = sum(stream.measure(upto) for stream in streams)
            if part.bytes and part.bytes + size > part_bytes:
                yield part.take()
            part.add(_build_table(streams, upto), size, upto)
            if part.is_full and upto < pull.hi:
                yield part.take()
        yield part.take()


def _find_steps(streams: Sequence[_Stream], hi: int, part: _Part) -> Iterator[int]:
    """Pull, and tell each commit_ts up to which what is held must be added to `part`: `hi` at last."""
    while behind := [stream for stream in streams if not stream.ended]:
        min(behind, key=lambda stream: stream.passed).take()
        passed = min(stream.passed for stream in streams)
        while sum(stream.bytes for stream in streams) >= part.step:
            upto = _cut(streams, min(passed, hi), part.step)
            if upto is None or upto >= hi:
                break
            yield upto
    yield hi


class _Part:
    """Gathers the rows above `lo` of the next PulledPart, with about `most` bytes of payload."""

    def __init__(self, lo: int, most: int) -> None:
        self.bytes = 0
        self._most = most
        self._lo = self._upto = lo
        self._tables: list[pa.Table] = []

    @property
    def step(self) -> int:
        """Bytes of payload to add next: not more than are left."""
        return min(SORTED_BYTES, self._most - self.bytes)

    @property
    def is_full(self) -> bool:
        """Whether so few bytes are left that another step does not pay."""
        return 2 * (self._most - self.bytes) < min(SORTED_BYTES, self._most)

    def add(self, rows: pa.Table, size: int, upto: int) -> None:
        """Add the rows up to `upto`, with `size` bytes of payload."""
        self._tables.append(rows)
        self.bytes, self._upto = self.bytes + size, upto

    def take(self) -> PulledPart:
        """What was added, which is no longer held."""
        taken = PulledPart(pa.concat_tables(self._tables), self._lo, self._upto)
        self._tables, self.bytes, self._lo = [], 0, self._upto
        return taken


def measure_payloads(rows: pa.RecordBatch) -> Ints:
    """Bytes of payload of each row, also of those that are written already."""
    sizes: Ints = np.array(pc.binary_length(rows["payload"]), np.int64)
    sizes += np.asarray(pc.fill_null(rows["written"], 0))
    return sizes


class _Stream:
    """The batches of one pump; the next one is always being fetched. All rows at or below `passed` have been taken."""

    def __init__(self, pool: ThreadPoolExecutor, node_id: str, lo: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.node_id = node_id
        self.batches: list[pa.RecordBatch] = []
        self.bytes = 0
        self.ended = False
        self.passed = lo
        self._pool = pool
        self._source = batches
        self._next: Future[pa.RecordBatch | None] = pool.submit(next, batches, None)

    def take(self) -> None:
        """Wait for the next batch."""
        batch = self._next.result()
        if batch is None:
            self.ended = True
            return
        self._next = self._pool.submit(next, self._source, None)
        last = batch["commit_ts"][batch.num_rows - 1].as_py()
        if batch["kind"][batch.num_rows - 1].as_py() == "proof":
            self.passed = max(self.passed, last)
            return
        self.batches.append(batch)
        self.bytes += int(measure_payloads(batch).sum())
        # More rows of the last transaction may follow.
        self.passed = max(self.passed, last - 1)

    def measure(self, upto: int) -> int:
        """Bytes of payload at or below `upto`."""
        sizes = (measure_payloads(one)[np.asarray(one["commit_ts"]) <= upto] for one in self.batches)
        return sum(int(size.sum()) for size in sizes)

    def drop(self, upto: int) -> list[pa.RecordBatch]:
        """The rows at or below `upto`, which are no longer held."""
        own: list[pa.RecordBatch] = []
        left: list[pa.RecordBatch] = []
        for batch in self.batches:
            inside = np.asarray(batch["commit_ts"]) <= upto
            if inside.all():
                own.append(batch)
            elif inside.any():
                own.append(batch.filter(pa.array(inside)))
                left.append(batch.filter(pa.array(~inside)))
            else:
                left.append(batch)
        self.batches, self.bytes = left, sum(int(measure_payloads(one).sum()) for one in left)
        return own


def _cut(streams: Sequence[_Stream], passed: int, most_bytes: int) -> int | None:
    """The commit_ts up to which there are at most `most_bytes` of payload, but at least one transaction.

    None if all pumps together have passed fewer bytes than that.
    """
    batches = [batch for stream in streams for batch in stream.batches]
    if not batches:
        return None
    ts = np.concatenate([np.asarray(batch["commit_ts"]) for batch in batches])
    sizes = np.concatenate([measure_payloads(batch) for batch in batches])
    own = (ts <= passed) & (sizes > 0)
    order = np.argsort(ts[own], kind="stable")
    ts, total = ts[own][order], sizes[own][order].cumsum(dtype=np.int64)
    if not len(ts) or total[-1] < most_bytes:
        return None
    # Cut only between transactions: at the last row of each one stands the total up to and including it.
    last = np.flatnonzero(np.diff(ts, append=ts[-1] + 1))
    fitting = int(np.searchsorted(total[last], most_bytes, side="right"))
    return int(ts[last[max(fitting, 1) - 1]])


def _build_table(streams: Sequence[_Stream], upto: int) -> pa.Table:
    """All rows at or below `upto`, sorted, which are no longer held; and for each pump a proof of how far it was
    pulled."""
    proofs = [build_proof(stream.node_id, stream.passed) for stream in streams]
    batches = [batch for stream in streams for batch in stream.drop(upto)]
    log.debug("pulled", batches=len(batches), upto=str(upto))
    rows = sort_rows(pa.Table.from_batches(batches, ARROW_SCHEMA))
    return pa.concat_tables([rows, pa.Table.from_batches(proofs, ARROW_SCHEMA)])


@dataclass(frozen=True)
class ExpectedBytes:
    """About how many `bytes` the pumps have of a window, None if unknown, and the ranges for tasks, without gaps."""

    bytes: int | None
    ranges: tuple[Bounds, ...]


def expect(pull: PumpPull, last: WindowManifest | None, task_bytes: int) -> ExpectedBytes:
    """Ask the pumps of `pull`; `last`: the last window. Raises SourceUnavailable."""
    window = Bounds(pull.lo, pull.hi)
    part_bytes = max(1, task_bytes // max(1, len(pull.pumps)))
    sizes = [pull.measure_pump(place, part_bytes) for place in range(len(pull.pumps))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not known:
        return _guess(window, last, task_bytes)
    cuts = max((size.cuts for size in known), key=len)
    ranges = _divide_at(window, cuts) if len(cuts) >= LEAST_RANGES - 1 else divide(window, LEAST_RANGES)
    return ExpectedBytes(sum(size.bytes for size in known), tuple(ranges))


def _guess(window: Bounds, last: WindowManifest | None, task_bytes: int) -> ExpectedBytes:
    """As if rows came as densely as in `last`."""
    if last is None:
        return ExpectedBytes(None, tuple(divide(window, GUESSED_RANGES)))
    expected = last.bytes * (window.hi - window.lo) // max(1, last.hi - last.lo)
    count = min(GUESSED_RANGES, max(LEAST_RANGES, -(-expected // task_bytes)))
    return ExpectedBytes(expected, tuple(divide(window, count)))


def divide(bounds: Bounds, most: int) -> list[Bounds]:
    """`bounds` as `most` ranges of equal time, fewer if it has fewer commit_ts."""
    count = min(most, bounds.hi - bounds.lo)
    return _join([bounds.lo + (bounds.hi - bounds.lo) * number // count for number in range(count + 1)])


def _divide_at(bounds: Bounds, cuts: Sequence[int]) -> list[Bounds]:
    """`bounds` divided at `cuts`, or at some of them if they are too many."""
    inside = sorted({cut for cut in cuts if bounds.lo < cut < bounds.hi})
    count = min(MOST_RANGES - 1, len(inside))
    return _join([bounds.lo, *(inside[len(inside) * number // count] for number in range(count)), bounds.hi])


def _join(edges: Sequence[int]) -> list[Bounds]:
    return [Bounds(*edge) for edge in pairwise(edges)]
