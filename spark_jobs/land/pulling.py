"""Pulls a window from all pumps in parallel and in step, until its end or until it has enough bytes.

The pump that is behind by commit_ts is read next, so that few rows lie above the commit_ts that all pumps have passed.
If the pull ends early, hi is lowered to a commit_ts that every pump has passed, so nothing is pulled twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from spark_jobs.job.context import StageContext
from spark_jobs.land.pulled import InMemory, Pulled
from spark_jobs.land.pump_source import ARROW_SCHEMA, BATCH_BYTES, PumpPull, build_proof
from spark_jobs.land.staging import Staged

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Part:
    """The result of a pull: all rows at or below `upto`, which is below the requested hi if the pull ended early.

    `full`: the driver had no room for more.
    """

    rows: pa.Table
    upto: int
    full: bool = False


def pull_window(ctx: StageContext, pull: PumpPull, most_bytes: int) -> tuple[Pulled, int]:
    """(the rows, the commit_ts up to which they are complete); the driver pulls alone if the rows fit.

    The pull ends early at `most_bytes` of payload (0 = no limit). Raises SourceUnavailable, LostRange, WireError.
    """
    part = pull_here(pull, _compute_room(ctx.driver_bytes, pull, most_bytes), most_bytes) if ctx.driver_bytes else None
    if part is not None and not part.full:
        return Pulled(InMemory(part.rows)), part.upto
    before = None if part is None else part.rows.filter(pc.less_equal(part.rows["commit_ts"], part.upto))
    rest = pull if part is None else replace(pull, lo=part.upto)
    if most_bytes:
        have = 0 if before is None else count_payload_bytes(before)
        rest = replace(rest, share_bytes=max(1, (most_bytes - have) // max(1, len(pull.pumps))))
    pulled = Pulled(Staged.pull_in_workers(ctx, rest, pull.lo, before))
    return pulled, min([pull.hi, *pulled.read_proofs().values()]) if most_bytes else pull.hi


def _compute_room(driver_bytes: int, pull: PumpPull, most_bytes: int) -> int:
    """Payload bytes that the driver takes.

    If the window ends at `most_bytes`, there is extra room for rows above the commit_ts that all pumps have passed;
    otherwise a last piece that would fit would be left to Spark.
    """
    return driver_bytes + (2 * BATCH_BYTES * len(pull.pumps) if 0 < most_bytes <= driver_bytes else 0)


def pull_here(pull: PumpPull, room: int, most_bytes: int) -> Part:
    """The pull in this process, as far as `room` bytes of payload allow."""
    with ThreadPoolExecutor(max(len(pull.pumps), 1), thread_name_prefix="pull") as pool:
        streams = [
            _Stream(pool, node_id, pull.lo, pull.pull_pump(place)) for place, (node_id, _) in enumerate(pull.pumps)
        ]
        taken = 0
        while behind := [stream for stream in streams if not stream.ended]:
            taken += min(behind, key=lambda stream: stream.passed).take()
            passed = min(stream.passed for stream in streams)
            upto = _cut(streams, passed, most_bytes) if most_bytes and taken >= most_bytes else None
            if upto is not None:
                return Part(_build_table(streams, upto), upto)
            if taken > room:
                return Part(_build_table(streams, passed), passed, full=True)
        return Part(_build_table(streams, pull.hi), pull.hi)


def count_payload_bytes(rows: pa.Table | pa.RecordBatch) -> int:
    """Bytes of payload in `rows`."""
    return pc.sum(pc.binary_length(rows["payload"])).as_py() or 0


class _Stream:
    """The batches of one pump; the next one is always being fetched. All rows at or below `passed` are in `batches`."""

    def __init__(self, pool: ThreadPoolExecutor, node_id: str, lo: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.node_id = node_id
        self.batches: list[pa.RecordBatch] = []
        self.ended = False
        self.passed = lo
        self._pool = pool
        self._source = batches
        self._next: Future[pa.RecordBatch | None] = pool.submit(next, batches, None)

    def take(self) -> int:
        """Wait for the next batch; returns its payload bytes."""
        batch = self._next.result()
        if batch is None:
            self.ended = True
            self.passed = self.batches[-1]["commit_ts"][-1].as_py()
            return 0
        self._next = self._pool.submit(next, self._source, None)
        self.batches.append(batch)
        # More rows of the last transaction may follow.
        self.passed = max(self.passed, batch["commit_ts"][batch.num_rows - 1].as_py() - 1)
        return count_payload_bytes(batch)


def _cut(streams: Sequence[_Stream], passed: int, most_bytes: int) -> int | None:
    """The commit_ts up to which there are at most `most_bytes` of payload, but at least one transaction.

    None if all pumps together have passed fewer bytes than that.
    """
    batches = [batch for stream in streams for batch in stream.batches]
    ts = np.concatenate([np.asarray(batch["commit_ts"]) for batch in batches])
    sizes = np.concatenate([np.asarray(pc.binary_length(batch["payload"])) for batch in batches])
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
    """All rows, and a proof for each pump that was not pulled to its end."""
    proofs = [build_proof(stream.node_id, stream.passed) for stream in streams if not stream.ended]
    batches = [batch for stream in streams for batch in stream.batches]
    log.debug("pulled", batches=len(batches), upto=str(upto))
    return pa.Table.from_batches([*batches, *proofs], ARROW_SCHEMA)
