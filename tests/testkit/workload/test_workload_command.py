"""`binlake workload` with a real placement driver and pumps: what it prints, serves, records and refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.certificates import certificate

from binlake.cluster.pumpclient import PumpReader
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes
from binlake.testkit.replay.replayer import ReplaySchedule
from binlake.wire import binlog_pb2 as pb
from deploy.local.ports import free_port

pytestmark = pytest.mark.process


@dataclass
class Source:
    """A placement driver and two pumps that will ask the workload's status port."""

    url: str
    status: str
    pumps: list[PumpServer]
    cluster_id: int

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "binlake.cli", "workload", "--pd-urls", self.url]
        return subprocess.run(
            [*command, "--status-addr", self.status, *words], capture_output=True, text=True, timeout=400, check=False
        )

    def taken(self, until_ts: int) -> dict[int, list[pb.Binlog]]:
        """commit_ts -> the transaction that each pump returns at it."""
        binlogs: dict[int, list[pb.Binlog]] = {}
        for pump in self.pumps:
            for commit_ts, start_ts, payload in PumpReader(pump.addr, self.cluster_id).pull(0, until_ts):
                if commit_ts != start_ts and commit_ts <= until_ts:
                    binlogs.setdefault(commit_ts, []).append(pb.Binlog.FromString(payload))
        return binlogs


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    status = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        pd = stack.enter_context(PlacementDriver(tmp_path / "pd"))
        pumps = []
        for number in (1, 2):
            pumps.append(PumpServer(PumpConfig(
                pd_urls=(pd.url,), addr="127.0.0.1:0", data_dir=tmp_path / f"pump{number}", node_id=f"pump{number}",
                status_urls=(f"http://{status}",), gen_binlog_interval_s=0.1, heartbeat_interval_s=0.2,
                resolve_interval_s=0.1, stop_write_at_available_space=0,
            )))  # fmt: skip
            pumps[-1].start()
            stack.callback(pumps[-1].stop)
        yield Source(pd.url, status, pumps, pd.cluster_id)


def test_a_run_is_summarised_recorded_and_pulled(source: Source, tmp_path: Path) -> None:
    # S0-06, S0-12, S0-15
    faults = ("--rollback", "0.1", "--hold", "0.1", "--double", "0.1")
    state, record = tmp_path / "state.jsonl", tmp_path / "taken"
    words = ("--transactions", "300", "--ddl-every", "50", "--seed", "5", *faults)
    done = source.run(*words, "--state", str(state), "--record", str(record), "--output", "json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["committed"] + summary["rolled_back"] == 300
    assert summary["ends_on_their_way"] == summary["failed"] == 0
    assert summary["writes_per_s"] > summary["transactions_per_s"] > 0
    assert 0 < summary["p50_ms"] <= summary["p99_ms"]

    last_ts = int(summary["last_commit_ts"])
    capture = Capture(record)
    binlogs = [pb.Binlog.FromString(payload) for payload in capture.read_binlogs()]
    kinds = Counter(binlog.tp for binlog in binlogs)
    assert kinds[pb.Commit] == summary["committed"] + len([b for b in binlogs if b.ddl_job_id and b.tp == pb.Commit])
    committed = {binlog.commit_ts for binlog in binlogs if binlog.tp == pb.Commit}
    taken = source.taken(last_ts)
    assert set(taken) == committed
    assert all(len({one.prewrite_value for one in twins}) == 1 for twins in taken.values())
    assert {job["binlog"]["SchemaVersion"] for job in capture.read_jobs()} == set(range(1, summary["ddl"] + 1))
    assert ReplaySchedule.of(capture, Outcomes.of(capture)).transactions == len(committed)
    (end,) = capture.read_states()
    assert end.commit_ts == last_ts
    assert state.read_text() == (record / "states.jsonl").read_text()


def test_lost_commits_and_rollbacks_are_resolved_by_the_status_port(source: Source, tmp_path: Path) -> None:
    # S0-50, R-07: the command waits for the pumps to ask.
    words = ("--transactions", "200", "--lose-commit", "0.2", "--lose-rollback", "0.2")
    done = source.run(*words, "--record", str(tmp_path / "taken"))
    assert done.returncode == 0, done.stderr
    outcomes = Outcomes.of(Capture(tmp_path / "taken"))
    committed = {found.commit_ts for found in outcomes.by_start.values() if found.commit_ts}
    orphans = [found for found in outcomes.by_start.values() if found.orphan]
    assert {bool(found.commit_ts) for found in orphans} == {True, False}
    assert set(source.taken(max(committed))) == committed


def test_status_port_has_tls_with_a_certificate(source: Source, tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    files = ("--status-ssl-cert", str(tls.cert), "--status-ssl-key", str(tls.key))
    done = source.run("--transactions", "5", "--output", "json", *files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status_url"] == f"https://{source.status}"
    done = source.run("--transactions", "5", *files[:2])
    assert done.returncode == 1
    assert "ssl-key" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "either --transactions or --seconds"),
        (("--transactions", "1", "--columns", "nonsense"), "unknown kind of column"),
        (("--transactions", "1", "--rollback", "2"), "shares of faults"),
    ],
)
def test_invalid_options_are_one_clear_error(source: Source, words: tuple[str, ...], says: str) -> None:
    done = source.run(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
