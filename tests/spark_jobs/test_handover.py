"""Rows for the next stage of the same process: kept for the given number of takers, and within a size limit."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa

from binlake.lake.tables import CHANGE, MUTATION
from binlake.target import Position
from binlake.window.derived import CompactManifest, Merged
from spark_jobs.job.handover import Handover
from spark_jobs.job.results import Bounds

FIRST, SECOND = Bounds(0, 10), Bounds(10, 20)
ROWS = pa.table({"n": pa.array(range(100), pa.int64())})


def test_each_taker_gets_the_rows_once() -> None:
    handover = Handover()
    handover.put(MUTATION, FIRST, ROWS, takers=2)
    handover.put(CHANGE, FIRST, ROWS.slice(1))
    assert handover.take(MUTATION, FIRST) is ROWS
    assert handover.take(MUTATION, SECOND) is None
    assert handover.take(MUTATION, FIRST) is ROWS
    assert handover.take(MUTATION, FIRST) is None
    assert handover.take(CHANGE, FIRST) == ROWS.slice(1)
    assert handover.bytes == 0


def test_rows_above_the_limit_or_without_takers_are_not_kept() -> None:
    handover = Handover(most_bytes=ROWS.nbytes + 8)
    handover.put(MUTATION, FIRST, ROWS)
    handover.put(CHANGE, FIRST, ROWS)
    assert handover.take(CHANGE, FIRST) is None
    handover.put(MUTATION, FIRST, ROWS.slice(0, 50))
    assert handover.bytes == ROWS.nbytes // 2
    handover.put(MUTATION, FIRST, ROWS, takers=0)
    assert handover.bytes == 0


def test_rows_put_again_replace_the_old_ones_even_if_too_large() -> None:
    handover = Handover(most_bytes=ROWS.nbytes)
    handover.put(CHANGE, FIRST, ROWS)
    assert handover.bytes == ROWS.nbytes
    handover.put(CHANGE, FIRST, pa.concat_tables([ROWS, ROWS]))
    assert handover.take(CHANGE, FIRST) is None


def test_finished_windows_are_dropped_and_later_ones_stay() -> None:
    handover = Handover()
    handover.put(CHANGE, FIRST, ROWS)
    handover.put(CHANGE, SECOND, ROWS)
    handover.drop(10)
    assert handover.take(CHANGE, FIRST) is None
    assert handover.take(CHANGE, SECOND) is ROWS


def test_last_sealed_compact_manifest_is_kept_until_its_window_is_finished() -> None:
    handover = Handover()
    first, second = (CompactManifest("r", "sql", *one, False, 1, Merged(1, 1, True, ())) for one in ((0, 10), (10, 20)))
    for manifest in (replace(first, rows=2), first, second):
        handover.put_compacted(manifest)
    assert (handover.find_compacted(FIRST), handover.find_compacted(SECOND)) == (first, second)
    handover.drop(10)
    assert (handover.find_compacted(FIRST), handover.find_compacted(SECOND)) == (None, second)


def test_work_derived_ahead_is_valid_only_for_its_window_and_position() -> None:
    handover, position = Handover(), Position(10, None, 1 << 20)
    handover.put_ahead("compact", SECOND, position, "changes")
    handover.put_ahead("convert", SECOND, position, "statements")
    assert handover.take_ahead("compact", SECOND, position) == "changes"
    assert handover.take_ahead("compact", SECOND, position) is None
    assert handover.take_ahead("convert", SECOND, position) is None
    for bounds, there in ((FIRST, position), (SECOND, replace(position, max_packet=1))):
        handover.put_ahead("compact", SECOND, position, "changes")
        handover.put_ahead("convert", SECOND, position, "statements")
        assert handover.take_ahead("compact", bounds, there) is None
        # The statements are based on changes that will be derived again.
        assert handover.take_ahead("convert", SECOND, position) is None


def test_concurrent_takers_get_the_rows_once_each() -> None:
    handover, found, at_once = Handover(), [], threading.Barrier(4)

    def take() -> None:
        at_once.wait()
        found.append(handover.take(MUTATION, FIRST))

    for _ in range(50):
        handover.put(MUTATION, FIRST, ROWS, takers=2)
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(rows is ROWS for rows in found) == 100
