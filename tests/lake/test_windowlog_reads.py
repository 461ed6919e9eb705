"""Reads of the window log equal a read of the whole log, and cost no more as it grows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from binlake.lake import control, controlrows
from binlake.lake.control import ControlTable
from binlake.lake.controlrows import ControlRows
from binlake.lake.opentable import open_dataset
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.mirror import MirrorState, MirrorVersions
from binlake.mirror import versions as mirror_versions
from binlake.window.manifest import WindowManifest

pytestmark = pytest.mark.long


def manifest(lo: int, hi: int) -> str:
    return WindowManifest("r", 7, lo, hi, "c", (), 2, 1, 0, 100, 7, "d").to_json()


def a_lake(folder: Path, ends: list[int], merged: int) -> WindowLog:
    """Windows that end at `ends`; the first `merged` of them are merged, the last one of those twice."""
    log = WindowLog(LakePaths(str(folder)))
    windows = list(zip([10, *ends], ends, strict=False))
    log.record(WindowEvent("start", 10, 10, "done"))
    for lo, hi in windows:
        log.record(WindowEvent("land", lo, hi, "done", manifest=manifest(lo, hi)))
        log.record(WindowEvent("plan", hi, hi + 50, "blocked"))
    for lo, hi in [*windows[:merged], *windows[max(merged - 1, 0) : merged]]:
        log.record(WindowEvent("merge", lo, hi, "done"))
    return log


@settings(max_examples=examples(8), deadline=None)
@given(st.sets(st.integers(11, 60), min_size=1, max_size=8), st.integers(0, 8), st.integers(5, 65), st.integers(0, 30))
def test_reads_by_range_equal_the_cut_whole_read(
    tmp_path_factory: pytest.TempPathFactory, ends: set[int], merged: int, lo: int, span: int
) -> None:
    # DESIGN 3.3: nothing may be missed because it was not read
    windows = list(zip([10, *sorted(ends)], sorted(ends), strict=False))
    log = a_lake(tmp_path_factory.mktemp("lake"), sorted(ends), merged)
    hi = lo + span
    assert log.list_landed() == windows
    assert log.list_landed((lo, hi)) == [w for w in windows if w[0] < hi and w[1] > lo]
    assert log.find_landed_range() == (10, windows[-1][1])
    assert [(m.lo, m.hi) for m in log.list_unmerged(hi)] == [w for w in windows[merged:] if w[1] <= hi]
    last = log.read_last_manifest()
    assert last is not None
    assert (last.lo, last.hi) == windows[-1]
    assert log.find_greatest_hi("merge") == (windows[: max(merged, 0)][-1][1] if merged else None)


def test_lake_without_landed_windows_has_no_range(tmp_path: Path) -> None:
    log = WindowLog(LakePaths(str(tmp_path)))
    assert (log.find_landed_range(), log.find_landed_ts(), log.list_unmerged(9), log.read_events()) == (
        None,
        None,
        [],
        [],
    )
    log.record(WindowEvent("start", 5, 5, "done"))
    assert (log.find_landed_range(), log.find_landed_ts()) == (None, None)


def test_old_windows_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S0-60: the cost does not grow with history. Full files stay unchanged, and their statistics exclude them.
    monkeypatch.setattr(control, "FILE_BYTES", 2_000)
    monkeypatch.setattr(control, "COMPACT_EVERY", 8)
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 0)
    log, paths = a_lake(tmp_path, list(range(20, 420, 10)), 40), LakePaths(str(tmp_path))
    table = DeltaTable(paths.locate_table("window"))
    where = (ds.field("stage") == "land") & (ds.field("lo") < 100) & (ds.field("hi") > 90)
    everything = list(open_dataset(table).get_fragments(filter=ds.field("stage") == "land"))
    assert len(list(open_dataset(table).get_fragments(filter=where))) < len(everything) / 3
    read: list[object] = []
    newest = ControlRows.iterate_newest_first

    def counted(*args: object) -> object:
        for most, group in newest(*args):  # type: ignore[arg-type]
            read.extend([] if group is None else [group])
            yield most, group

    monkeypatch.setattr(ControlRows, "iterate_newest_first", counted)
    assert log.find_landed_ts() == 410
    assert len(read) == 1
    before = log.list_landed()
    assert log.tidy()["joined"] >= 0
    assert WindowLog(paths).list_landed() == before


def test_two_readers_see_each_others_events(tmp_path: Path) -> None:
    one, other = WindowLog(LakePaths(str(tmp_path))), WindowLog(LakePaths(str(tmp_path)))
    for hi in range(20, 200, 10):
        (one if hi % 20 else other).record(WindowEvent("land", hi - 10, hi, "done", manifest=manifest(hi - 10, hi)))
        assert one.find_landed_ts() == other.find_landed_ts() == hi


def test_newest_version_of_each_mirror_is_known_without_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_versions, "HEAD_EVERY", 10)
    paths = LakePaths(str(tmp_path))
    versions, wanted = MirrorVersions(paths), {}
    for hi in range(1, 40):
        rows = [
            MirrorState("d", f"t{hi % 7}", hi, hi - 1, hi),
            MirrorState("d", "busy", hi, hi - 1, hi, hi % 2 == 0),
        ]
        if hi == 30:
            # The run died after its tables and repeated the window.
            versions.record(rows)
        versions.record(rows)
        wanted |= {(row.db, row.table): row for row in rows}
        assert MirrorVersions(paths).read_latest() == wanted
    heads = ControlTable(paths.locate_table("mirror_head"), mirror_versions.MIRROR_HEAD).read_rows()
    assert max(head["upto"] for head in heads) > 20
    assert [v.hi for v in versions.read_versions("d", "t3")] == [3, 10, 17, 24, 31, 38]
