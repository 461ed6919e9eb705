"""A C whose P is lost, as after a replaced disk: the pump reports it, and a command makes pulls skip it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pump_cluster import CLUSTER_ID, MemoryCluster
from pump_helpers import MakePump, commit, prewrite, reach, settled, store, until
from test_pump_pages import ask, envelope, value, write

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import Permanent, WireError
from binlake.pump_service.pump.clients import NoStatusSource
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.outcomes import PrewriteVerdict
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build


@pytest.mark.parametrize("few", [True, False])
def test_pulls_skip_only_the_given_up_commit(tmp_path: Path, *, few: bool) -> None:
    storage = PumpStorage(tmp_path)
    more = [] if few else [one for at in range(10, 90, 2) for one in (prewrite(at), commit(at, at + 1))]
    store(storage, *more, commit(100, 150), prewrite(200), commit(200, 250), build.build_fake(300))
    reach(storage, 300)
    with pytest.raises(WireError, match="give-up 100 --commit-ts 150"):
        settled(storage)
    verdict = PrewriteVerdict(storage, NoStatusSource(), PumpMetrics())
    for start_ts, commit_ts, why in (
        (100, 250, "no commit of this transaction"),
        (100, 151, "no commit of this transaction"),
        (200, 250, "its prewrite is stored here"),
    ):
        with pytest.raises(Permanent, match=why):
            verdict.give_up(start_ts, commit_ts)
    verdict.give_up(100, 150)
    expected = [*range(11, 91, 2), 250, 300] if more else [250, 300]
    assert [ts for _, ts, _ in settled(storage)] == expected
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path)  # neither a restart nor a lost index undoes the decision
    reach(storage, 300)
    assert [ts for _, ts, _ in settled(storage)] == expected
    assert storage.lost.commit_ts() == [150]
    storage.close()


def test_a_given_up_commit_is_pulled_if_its_prewrite_still_arrives(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    store(storage, commit(100, 150), build.build_fake(300))
    reach(storage, 300)
    PrewriteVerdict(storage, NoStatusSource(), PumpMetrics()).give_up(100, 150)
    store(storage, prewrite(100), commit(100, 150))
    until(lambda: storage.index.find_pointer(100) is not None, "the late P is indexed")
    assert [ts for _, ts, _ in settled(storage)] == [150, 300]
    storage.close()


def test_the_pump_names_the_commit_that_ends_pulls_until_it_is_given_up(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    start, commit_ts = cluster.fetch_ts(), cluster.fetch_ts()
    write(pump, cluster, commit(start, commit_ts))
    reader = PumpReader(pump.addr, CLUSTER_ID)
    with pytest.raises(WireError, match="a commit has no prewrite"):
        list(reader.pull(0, cluster.fetch_ts()))
    problem = reader.read_info().last_error
    assert f"start_ts={start}" in problem
    assert f"give-up {start}" in problem
    assert envelope(ask(pump, "PUT", f"/txn/{start}/give-up/{commit_ts}"))[1] == 200
    assert all(one[0] != commit_ts for one in reader.pull(0, cluster.fetch_ts()))
    info = reader.read_info()
    assert (info.last_error, info.lost_commit_ts) == ("", (commit_ts,))
    assert value(pump, "binlake_pump_given_up_commits_total") == 1
    assert envelope(ask(pump, "PUT", f"/txn/{start}/give-up/{commit_ts + 1}"))[1] == 3
