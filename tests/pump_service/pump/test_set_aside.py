"""A pump that holds a binlog from the future reports it at the start, and a command moves it out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, rollback, settled, store

from binlake import tso
from binlake.errors import Permanent
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.future_timestamps import find_above, set_aside
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog

FAR = tso.compose(4_000_000_000_000)


def filled(folder: Path, now: int, *future: Binlog, segment_bytes: int = 300) -> list[int]:
    """A pump's directory with two transactions and binlogs from the future; returns their commit_ts."""
    storage = PumpStorage(folder, StorageOptions(segment_bytes=segment_bytes))
    store(storage, prewrite(now + 1), commit(now + 1, now + 2), *future, prewrite(now + 3), commit(now + 3, now + 4))
    storage.close()
    return [now + 2, now + 4]


@pytest.mark.parametrize("segment_bytes", [300, 1 << 20])
@pytest.mark.parametrize(
    "future",
    [
        [build.build_fake(FAR)],
        [prewrite(FAR, b"v" * 9000)],
        [rollback(FAR)],
        [prewrite(FAR - 9, b""), commit(FAR - 9, FAR)],
    ],
    ids=["fake", "large P", "R", "transaction"],
)
def test_binlogs_from_the_future_are_moved_out_and_all_others_stay(
    tmp_path: Path, future: list[Binlog], segment_bytes: int
) -> None:
    now = tso.compose(1_795_000_000_000)
    kept = filled(tmp_path, now, *future, segment_bytes=segment_bytes)
    assert [one.payload for one in find_above(tmp_path, now + 100)] == [one.SerializeToString() for one in future]
    storage = PumpStorage(tmp_path)
    assert storage.max_ts >= FAR - 9, "listing changes nothing"
    with pytest.raises(Permanent, match="another process holds the data directory"):
        set_aside(tmp_path, now + 100)
    storage.close()
    assert len(set_aside(tmp_path, now + 100)) == len(future)
    assert sorted(file.read_bytes() for file in (tmp_path / "aside").iterdir()) == sorted(
        one.SerializeToString() for one in future
    )
    for _ in range(2):  # with a rebuilt index, and with the present one
        storage = PumpStorage(tmp_path)
        assert (storage.watermark, storage.max_ts) == (kept[-1], kept[-1])
        assert [commit_ts for _, commit_ts, _ in settled(storage)] == kept
        assert storage.count_unmatched() == (0, 0)
        storage.close()
    assert set_aside(tmp_path, now + 100) == []


def test_a_commit_that_is_set_aside_leaves_its_transaction_open(tmp_path: Path) -> None:
    now = tso.compose(1_795_000_000_000)
    filled(tmp_path, now, prewrite(now), commit(now, FAR))
    (one,) = set_aside(tmp_path, now + 100)
    assert (one.kind, one.start_ts, one.commit_ts) == ("commit", now, FAR)
    storage = PumpStorage(tmp_path)
    assert [entry.start_ts for entry in storage.list_waiting_prewrites()] == [now], (
        "the P waits until the source is asked"
    )
    storage.close()


def test_with_a_foreign_clock_nothing_is_moved_out(tmp_path: Path) -> None:
    filled(tmp_path, tso.compose(1_795_000_000_000))
    with pytest.raises(Permanent, match="this PD did not give their timestamps"):
        set_aside(tmp_path, 5)


@pytest.mark.long
def test_a_start_names_the_command_that_fixes_it_and_the_command_works(
    tmp_path: Path, build_pump: MakePump, cluster: MemoryCluster
) -> None:
    folder = tmp_path / "pump1"
    kept = filled(folder, cluster.fetch_ts() - tso.compose(60_000), build.build_fake(FAR))
    with pytest.raises(Permanent, match=r"PD's clock is behind .*`binlake pump set-aside` lists"):
        build_pump()
    with PlacementDriver(tmp_path / "pd", cluster_id=cluster.id) as pd:
        command = [sys.executable, "-m", "binlake.cli", "pump", "--pd-urls", pd.url]
        command += ["--data-dir", str(folder), "set-aside"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        command.append("--accept-loss")
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert f"fake start_ts={FAR} commit_ts={FAR} (2096-10-02T07:06:40+00:00)" in listed
    assert "--accept-loss moves them out" in listed
    assert "1 moved out, copies are in" in done
    pump = build_pump()
    assert kept[-1] <= pump.service.build_info().max_commit_ts < FAR
    page = pump.service.metrics.render_page(pump._storage, int, int).decode()
    assert "binlake_pump_set_aside_binlogs 1" in page


def test_a_running_pump_reports_a_pd_that_fell_behind(build_pump: MakePump) -> None:
    pump = build_pump(heartbeat_interval_s=3600.0, gen_binlog_interval_s=3600.0)
    pump._ceiling._known -= tso.compose(3_600_000)  # as if another PD, an hour behind, had answered since
    pump._publish()
    assert "above PD's clock" in pump.service.build_info().last_error
    pump._ceiling.fetch_ts()
    pump._publish()
    assert pump.service.build_info().last_error == ""
