"""The positions at which a window of a model's source may end: at each commit and between commits, if land's rule
allows.

A window must not separate a row from a DDL that it ran ahead of (a value would be lost forever:
docs/understand/schema.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlake.rows.schema import DdlJob, WindowDdl
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.land import ddljobs as landing


@dataclass(frozen=True)
class Rows:
    """What land asks of the pulled binlogs; `places`: commit_ts of all transactions with rows, ascending."""

    places: Sequence[int]

    def find_first_row(self, since: int, _version: int = 0) -> int | None:
        """Like Pulled."""
        place = bisect_left(self.places, since)
        return self.places[place] if place < len(self.places) else None


def window_ends(rows: Iterable[int], jobs: Iterable[tuple[int, DdlJob]], commits: Iterable[int]) -> list[int]:
    """The ends, ascending; `rows`: commit_ts of transactions, `commits`: of all commits."""
    pulled = Rows(sorted(rows))
    ddls = [WindowDdl.without_binlog(job, ts) for ts, job in jobs if job.took_effect]
    candidates = sorted({ts + more for ts in commits for more in (0, 1)})
    return [ts for ts in candidates if landing._lower_before_rows_ahead(pulled, Bounds(0, ts), ddls) == ts]  # type: ignore[arg-type]
