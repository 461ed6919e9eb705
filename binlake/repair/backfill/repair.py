"""Brings every key that a range touched to its state at the target's checkpoint, window by window of the range.

The target is held for one window at a time, so scheduled runs continue in between: each window is repaired to the
checkpoint at that time, never to an older one (MISSION C-05, hazards R-01).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from binlake.audit.audit import Audit
from binlake.config import Replication
from binlake.errors import IncompleteWindow, Transient
from binlake.lake.paths import LakePaths
from binlake.repair.backfill.progress import BackfillProgress, Bounds
from binlake.repair.backfill.touched import TouchedKeys, find_touched_keys
from binlake.repair.verify.repairing import Repaired, build_settled_target, group_keys_by_table, repair_keys
from binlake.repair.verify.run import VerifyOptions, verify
from binlake.repair.verify.tables import list_tables_at
from binlake.rules import Rules
from binlake.target.apply.settled import SettledTarget

log = structlog.get_logger(__name__)

MOST_DIFFERENCES = 1_000_000
"""Rows repaired at once in tables that are compared completely."""
_ASK_EVERY_S = 0.5


def repair_range(
    replication: Replication,
    progress: BackfillProgress,
    *,
    wait_s: float = 0.0,
    hook: Callable[[str], None] | None = None,
) -> Repaired:
    """Repair the rest of the range. Returns the totals. Raises what `repair_keys` raises, and IncompleteWindow."""
    total = Repaired(0)
    for bounds in progress.list_remaining():
        began = time.monotonic()
        with hold_target(replication, wait_s, hook=hook) as target:
            done = _repair_window(replication, bounds, target)
        detail = {"keys": done.keys, "different": done.different, "checkpoint": str(done.commit_ts), "gone": done.gone}
        detail |= {"unknown": done.unknown, "aside": done.aside}
        progress.record_done(bounds, done.rows, time.monotonic() - began, detail)
        log.info("window_repaired", lo=bounds[0], hi=bounds[1], rows=done.rows, **detail)
        total = _add_up(total, done)
    return total


@contextmanager
def hold_target(
    replication: Replication, wait_s: float, *, hook: Callable[[str], None] | None = None
) -> Iterator[SettledTarget]:
    """Hold the target, waiting up to `wait_s` seconds while another process applies. Raises LeaseHeld, Transient."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            target = build_settled_target(replication, hook=hook).__enter__()
            break
        except Transient:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_ASK_EVERY_S)
    try:
        yield target
    finally:
        target.__exit__()


def _repair_window(replication: Replication, bounds: Bounds, target: SettledTarget) -> Repaired:
    ts = target.read_checkpoint().commit_ts
    paths = LakePaths.of(replication)
    merged = Audit(paths, Rules.of(replication)).read_merged_range()[1]
    if bounds[1] > merged:
        raise IncompleteWindow("a window of the range is not merged yet", where={"to": bounds[1], "merged": merged})
    touched = find_touched_keys(replication, *bounds, ts, list_tables_at(replication, paths, ts))
    left = touched.remove_aside(target.read_aside_tables())
    done = repair_keys(replication, touched.sort_keys(), target)
    if touched.whole:
        done = _add_up(done, _repair_whole_tables(replication, touched, target))
    done.gone += [".".join(name) for name in sorted(touched.gone)]
    done.aside += [".".join(name) for name in sorted(left)]
    return done


def _repair_whole_tables(replication: Replication, touched: TouchedKeys, target: SettledTarget) -> Repaired:
    """Compare every row of tables whose keys in the range no longer identify rows."""
    names = tuple(".".join(name) for name in sorted(touched.whole))
    compared = verify(replication, VerifyOptions(tables=names, max_differences=MOST_DIFFERENCES, fresh=True))
    tables = list_tables_at(replication, LakePaths.of(replication), compared.commit_ts)
    done = repair_keys(replication, group_keys_by_table(compared.differences, tables), target)
    if not compared.listed_all or any(table.unlisted for table in compared.tables):
        raise Transient("more rows differ than one run repairs", where={"tables": names}, hint="run it again")
    unknown = [f"{table.db}.{table.table}" for table in compared.tables if table.inexact]
    looked = {table.name: table.expected for table in compared.read} | done.looked
    return replace(done, keys=compared.rows, unknown=[*done.unknown, *unknown], looked=looked)


def _add_up(total: Repaired, other: Repaired) -> Repaired:
    return Repaired(
        other.commit_ts, total.keys + other.keys, total.different + other.different, total.rows + other.rows,
        [*total.gone, *other.gone], [*total.unknown, *other.unknown],
        {**total.looked, **other.looked}, total.written | other.written, [*total.aside, *other.aside],
    )  # fmt: skip
