"""The operator's commands against the embedded placement driver and pumps with HTTP pages."""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.pump_calls import write_binlog

from binlake import tso
from binlake.cli import Command
from binlake.cluster.control import commands as control
from binlake.cluster.control.drainercommands import (
    GenerateMetaCommand,
    OfflineDrainerCommand,
    PauseDrainerCommand,
    ResumeDrainerCommand,
)
from binlake.cluster.control.nodes import format_table, format_unread_range, is_stale
from binlake.cluster.control.txn import TxnCommand
from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus, PdClient
from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.source import Unknown
from binlake.errors import BinlakeError, ConfigError, Permanent, SourceUnavailable, WireError
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.wire import build
from binlake.wire.binlog_pb2 import PrewriteValue

VALUE = PrewriteValue(schema_version=1).SerializeToString()


@dataclass
class Cluster:
    """A placement driver, and clients of it."""

    url: str
    registry: NodeRegistry
    pd: PdClient

    def run(self, command: type[Command], *words: str) -> int:
        """Run one command as the CLI does."""
        parser = argparse.ArgumentParser()
        one = command()
        one.add_arguments(parser)
        # The options of `txn` follow its action.
        at = 1 if words and words[0] in ("show", "list", "resolve", "give-up") else 0
        arguments = [*words[:at], f"-pd-urls={self.url}", *words[at:]]
        return one.run(parser.parse_args(arguments))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with PlacementDriver(tmp_path / "pd") as driver, contextlib.ExitStack() as stack:
        etcd = stack.enter_context(contextlib.closing(EtcdClient([driver.url])))
        pd = stack.enter_context(contextlib.closing(PdClient([driver.url])))
        yield Cluster(driver.url, NodeRegistry(etcd), pd)


class Silent:
    """A source that knows no outcomes."""

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Unknown:
        del start_ts, key
        return Unknown("collected")


MakePump = Callable[[str], PumpServer]


@pytest.fixture
def build_pump(tmp_path: Path, cluster: Cluster) -> Iterator[MakePump]:
    """Pumps that serve in threads."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> PumpServer:
            config = PumpConfig(
                pd_urls=(cluster.url,), addr="127.0.0.1:0", data_dir=tmp_path / name,
                node_id=name, gen_binlog_interval_s=0.1, heartbeat_interval_s=0.1, stop_write_at_available_space=0,
            )  # fmt: skip
            pump = PumpServer(config, source=Silent())
            pump.start()
            thread = threading.Thread(target=pump.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(pump.request_leave, "pause")
            return pump

        yield start


def state_of(cluster: Cluster, node: str) -> str:
    entry = cluster.registry.find_pump(node)
    assert entry is not None
    return entry.status.state


def awaited(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(3000):
        if condition():
            return
        done.wait(0.02)
    raise AssertionError("not within a minute")


def test_pumps_are_listed_with_the_columns_of_binlogctl(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    now = cluster.pd.fetch_ts()
    cluster.registry.put_pump(NodeStatus("pump1", "127.0.0.1:8250", "online", max_commit_ts=7, update_ts=now))
    cluster.registry.put_pump(NodeStatus("pump2", "127.0.0.1:8252", "online", max_commit_ts=470614495969148933))
    cluster.registry.put_pump(NodeStatus("gone", "127.0.0.1:8253", "offline"))
    assert cluster.run(control.PumpsCommand) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NodeID", "Address", "State", "Max_Commit_Ts", "Update_Time"]
    assert [line.split()[0] for line in lines[1:]] == ["pump1", "pump2"]
    # S0-34: an old heartbeat makes a pump stale.
    assert ["stale" in line for line in lines[1:]] == [False, True]
    assert cluster.run(control.PumpsCommand, "-show-offline-nodes", "--output", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["nodeId"] for one in shown] == ["gone", "pump1", "pump2"]
    assert shown[2]["maxCommitTS"] == "470614495969148933"
    assert shown[0]["stale"] is False


def test_drainers_are_listed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.registry.publish_drainer("binlake-bank", 470614495969148933)
    assert cluster.run(control.DrainersCommand) == 0
    assert "binlake-bank" in capsys.readouterr().out


def test_forced_offline_warns_about_lost_binlogs(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    #
    cluster.registry.put_pump(NodeStatus("pump1", "h:1", "online", score=3, max_commit_ts=900))
    cluster.registry.publish_drainer("binlake-bank", 700)
    assert cluster.run(control.UpdatePumpCommand, "-node-id", "pump1", "-state", "offline") == 0
    printed = capsys.readouterr()
    assert "online -> offline" in printed.out
    assert "(700, 900]" in printed.err
    entry = cluster.registry.find_pump("pump1")
    assert entry is not None
    assert (entry.status.state, entry.status.score, entry.status.max_commit_ts) == ("offline", 3, 900)
    assert cluster.run(control.UpdatePumpCommand, "-node-id", "pump1", "-state", "paused") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "words", "kind", "message"),
    [
        (control.UpdatePumpCommand, ("-state", "offline"), Permanent, "key /tidb-binlog/v1/pumps/no in etcd not found"),
        (control.UpdatePumpCommand, ("-state", "bogus"), Permanent, "in etcd not found"),
        (control.UpdateDrainerCommand, ("-state", "offline"), Permanent, "/tidb-binlog/v1/drainers/no in etcd"),
        (control.PausePumpCommand, (), Permanent, "pumps/no in etcd not found"),
        (OfflineDrainerCommand, (), Permanent, "drainers/no in etcd not found"),
        (ResumeDrainerCommand, (), Permanent, "drainers/no in etcd not found"),
    ],
)
def test_unknown_node_is_reported_with_the_originals_text(
    cluster: Cluster, command: type[Command], words: tuple[str, ...], kind: type[BinlakeError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        cluster.run(command, "-node-id", "no", *words)


def test_invalid_state_is_refused(cluster: Cluster) -> None:
    cluster.registry.put_pump(NodeStatus("pump1", "h:1", "paused"))
    with pytest.raises(ConfigError, match="state bogus is illegal"):
        cluster.run(control.UpdatePumpCommand, "-node-id", "pump1", "-state", "bogus")
    assert state_of(cluster, "pump1") == "paused"


def test_pause_pump_pauses_the_pump(cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]) -> None:
    # S0-29
    build_pump("pump1")
    assert cluster.run(control.PausePumpCommand, "-node-id", "pump1") == 0
    assert "Apply action on node success" in capsys.readouterr().out
    awaited(lambda: state_of(cluster, "pump1") == "paused")
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        cluster.run(control.OfflinePumpCommand, "-node-id", "pump1")


def test_offline_pump_waits_for_consumers(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    # S0-33, R-05
    pump = build_pump("pump1")
    cluster.registry.publish_drainer("binlake-bank", 5)
    awaited(lambda: cluster.registry.list_pumps()[0].max_commit_ts > 5)
    assert cluster.run(control.OfflinePumpCommand, "-node-id", "pump1") == 0
    assert "not yet: (5, " in capsys.readouterr().out
    awaited(lambda: "binlake-bank at 5" in str(pump.service.problems))
    awaited(lambda: state_of(cluster, "pump1") == "closing")
    cluster.registry.publish_drainer("binlake-bank", cluster.pd.fetch_ts())
    awaited(lambda: state_of(cluster, "pump1") == "offline")
    entry, taken = cluster.registry.find_pump("pump1"), cluster.registry.list_drainers()[0].max_commit_ts
    assert entry is not None
    assert entry.status.max_commit_ts <= taken


def test_offline_pump_warns_that_an_original_pump_does_not_wait(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(_: PumpReader) -> None:
        raise WireError("the pump has no Info service")

    build_pump("pump1")
    monkeypatch.setattr(PumpReader, "read_info", info)
    assert cluster.run(control.OfflinePumpCommand, "-node-id", "pump1") == 0
    printed = capsys.readouterr()
    assert "goes offline when consumers" not in printed.out
    assert "an original pump: it does not check Binlake's windows" in printed.err


def test_gc_request_names_the_consumer_that_blocks_gc(cluster: Cluster, build_pump: MakePump) -> None:
    #
    pump = build_pump("pump1")
    page = f"http://{pump.addr}/debug/gc/trigger"
    cluster.registry.publish_drainer("binlake-slow", 5)
    assert "held back by binlake-slow (at 5)" in httpx.post(page, timeout=60).text
    assert "binlake-slow" in str(pump.service.problems)
    cluster.registry.set_drainer_state("binlake-slow", "offline")
    assert httpx.post(page, timeout=60).text == "trigger gc success\n"
    assert str(pump.service.problems) == ""


def test_update_pump_warns_that_a_live_pump_rewrites_its_state(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    build_pump("pump1")
    assert cluster.run(control.UpdatePumpCommand, "-node-id", "pump1", "-state", "paused") == 0
    assert "is alive" in capsys.readouterr().err
    awaited(lambda: state_of(cluster, "pump1") == "online")


def test_unreachable_node_is_named(cluster: Cluster) -> None:
    cluster.registry.put_pump(NodeStatus("pump1", "127.0.0.1:1", "online"))
    with pytest.raises(SourceUnavailable, match=r"http://127\.0\.0\.1:1/state/pump1/pause"):
        cluster.run(control.PausePumpCommand, "-node-id", "pump1")


def drainer_state(cluster: Cluster, node: str = "binlake-bank") -> str:
    [state] = [one.state for one in cluster.registry.list_drainers() if one.node_id == node]
    return state


def test_replication_is_paused_taken_offline_and_resumed_by_its_entry(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:  # S0-74 R-05 R-26
    node = ("-node-id", "binlake-bank")
    cluster.registry.publish_drainer("binlake-bank", 5, host="of.a.pump.that:moved")
    for _ in range(2):
        assert cluster.run(PauseDrainerCommand, *node) == 0
        assert "until `binlake resume-drainer -node-id binlake-bank`" in capsys.readouterr().out
        # Pumps wait for it as before, and do not notify it; a window that ends keeps the state.
        cluster.registry.publish_drainer("binlake-bank", 6)
        assert drainer_state(cluster) == "pausing"
    assert cluster.run(ResumeDrainerCommand, *node) == 0
    assert capsys.readouterr() == (
        "drainer binlake-bank: pausing -> paused, as between two windows: the next run plans one\n",
        "",
    )
    assert cluster.run(OfflineDrainerCommand, *node) == 0
    assert "no longer wait" in capsys.readouterr().out
    with pytest.raises(Permanent, match=r"its state is offline.*resume-drainer"):
        cluster.run(PauseDrainerCommand, *node)
    assert drainer_state(cluster) == "offline"
    assert cluster.run(ResumeDrainerCommand, *node) == 0
    assert "it is at 6): if one has deleted binlogs" in capsys.readouterr().err
    assert drainer_state(cluster) == "paused"


def test_original_drainer_is_resumed_by_starting_it(cluster: Cluster) -> None:
    cluster.registry.put_drainer(NodeStatus("drainer1", "127.0.0.1:1", "paused"))
    with pytest.raises(Permanent, match="start the drainer's process"):
        cluster.run(ResumeDrainerCommand, "-node-id", "drainer1")
    with pytest.raises(SourceUnavailable, match=r"http://127\.0\.0\.1:1/state/drainer1/pause"):
        cluster.run(PauseDrainerCommand, "-node-id", "drainer1")
    assert drainer_state(cluster, "drainer1") == "paused"


def test_binlogctl_gets_an_answer_for_a_replication(cluster: Cluster, build_pump: MakePump) -> None:
    """binlogctl sends PUT http://HOST/state/NODE/ACTION to the address in the consumer's entry."""
    pump = build_pump("pump1")
    cluster.registry.publish_drainer("binlake-bank", 5, host=pump.addr)
    cluster.registry.publish_drainer("binlake-bank", 6)
    now = cluster.pd.fetch_ts()
    cluster.registry.put_drainer(NodeStatus("drainer1", "127.0.0.1:1", "online", max_commit_ts=now))
    [node] = [one for one in cluster.registry.list_drainers() if one.node_id == "binlake-bank"]
    assert (node.host, node.state, node.max_commit_ts) == (pump.addr, "paused", 6)

    def ask(node_id: str, action: str) -> tuple[int, str]:
        answer = httpx.put(f"http://{node.host}/state/{node_id}/{action}", timeout=60).json()
        return answer["code"], answer["message"]

    assert ask("binlake-bank", "pause") == (200, "apply action pause success!")
    assert drainer_state(cluster) == "pausing"
    # S0-34 R-26: the pump counts it as before.
    cluster.registry.publish_drainer("binlake-bank", 5)
    assert "held back by binlake-bank (at 5)" in httpx.post(f"http://{pump.addr}/debug/gc/trigger", timeout=60).text
    assert ask("binlake-bank", "bogus") == (3, "invalide action bogus")
    # It answers for replications that name it, and for no other node.
    assert ask("drainer1", "close") == (3, "invalide nodeID drainer1, this pump's nodeID is pump1")
    assert ask("binlake-bank", "close") == (200, "apply action close success!")
    code, message = ask("binlake-bank", "pause")
    assert (code, message.startswith("apply pause failed! its state is offline")) == (3, True)
    states = {one.node_id: one.state for one in cluster.registry.list_drainers()}
    assert states == {"binlake-bank": "offline", "drainer1": "online"}
    assert state_of(cluster, "pump1") == "online"


def test_generate_meta_writes_the_savepoint(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cluster.pd.fetch_ts()
    words = ("-data-dir", str(tmp_path / "meta"), "-time-zone", "Asia/Tokyo")
    assert cluster.run(GenerateMetaCommand, *words) == 0
    first, second = (tmp_path / "meta" / "savepoint").read_text().splitlines()
    assert capsys.readouterr().out.splitlines() == [first, second]
    assert before < int(first.removeprefix("commitTS = "))
    assert second.endswith("+09:00")
    with pytest.raises(ConfigError, match="unknown time zone"):
        cluster.run(GenerateMetaCommand, "-data-dir", str(tmp_path), "-time-zone", "Nowhere")


@pytest.mark.long
def test_txn_shows_and_decides_a_transaction(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    # R-07, S0-75
    pump = build_pump("pump1")
    start = cluster.pd.fetch_ts()
    payload = build.build_prewrite(start, b"k", VALUE).SerializeToString()
    stored = write_binlog(pump.service, cluster.pd.fetch_cluster_id(), payload)
    assert stored is not None
    stored.result(10)
    awaited(lambda: pump.service.build_info().unmatched_prewrites == 1)
    assert cluster.run(TxnCommand, "show", str(start), "--pump", "pump1") == 0
    assert f"type: Prewrite\nstart_ts: {start}\n" in capsys.readouterr().out
    commit_ts = cluster.pd.fetch_ts()
    decision = ("resolve", str(start), "--commit-ts", str(commit_ts), "--pump", "pump1")
    with pytest.raises(Permanent, match="pass a client certificate, or the token"):
        cluster.run(TxnCommand, *decision)
    token = str(pump._config.data_dir / "admin-token")
    assert cluster.run(TxnCommand, *decision, "--token-file", token) == 0
    assert f"is recorded as committed at {commit_ts}" in capsys.readouterr().out
    awaited(lambda: pump.service.build_info().max_commit_ts >= commit_ts)
    with pytest.raises(Permanent, match="no prewrite with this start_ts waits in this pump"):
        cluster.run(TxnCommand, "resolve", str(start), "--rolled-back", "--pump", "pump1", "--token-file", token)
    with pytest.raises(ConfigError, match="the token cannot be read"):
        cluster.run(TxnCommand, *decision, "--token-file", token + "x")


@pytest.mark.parametrize("words", [("resolve", "5", "--pump", "p"), ("resolve", "x", "--rolled-back", "--pump", "p")])
def test_txn_resolve_requires_an_outcome(cluster: Cluster, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        cluster.run(TxnCommand, *words)


def test_node_is_stale_after_three_missed_heartbeats() -> None:
    # S0-34
    now = tso.compose(1_000_000)
    old = NodeStatus("p", "h:1", "online", update_ts=tso.compose(1_000_000 - 6001))
    assert is_stale(old, now, 2.0)
    assert not is_stale(old, now, 2.1)
    assert not is_stale(NodeStatus("p", "h:1", "paused"), now, 2.0)


def test_unread_range_ignores_offline_consumers() -> None:
    pump = NodeStatus("p", "h:1", "online", max_commit_ts=90)
    assert format_unread_range(pump, [NodeStatus("d", "", "offline", max_commit_ts=90)]).startswith("everything")
    drainers = [NodeStatus("d", "", "paused", max_commit_ts=70), NodeStatus("e", "", "online", max_commit_ts=99)]
    assert format_unread_range(pump, drainers) == "(70, 90]"
    assert format_unread_range(pump, drainers[1:]) == ""


def test_table_is_never_cropped() -> None:
    assert format_table(("a", "b"), [("x" * 200, "1")]) == f"{'a'.ljust(200)}  b\n{'x' * 200}  1"


@pytest.mark.long
def test_many_orphans_are_listed_and_decided_in_one_command(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    #
    pump = build_pump("pump1")
    starts = [cluster.pd.fetch_ts() for _ in range(3)]
    for start in starts:
        stored = write_binlog(
            pump.service, cluster.pd.fetch_cluster_id(), build.build_prewrite(start, b"k", VALUE).SerializeToString()
        )
        assert stored is not None
        stored.result(60)
    awaited(lambda: pump.service.build_info().unmatched_prewrites == 3)
    assert cluster.run(TxnCommand, "list", "--output", "json", "--pump", "pump1") == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["start_ts"] for one in listed] == [str(start) for start in starts]
    assert listed[0]["key"] == b"k".hex()
    words = [str(start) for start in (starts[0], 7, starts[1])]
    token = ("--pump", "pump1", "--token-file", str(pump._config.data_dir / "admin-token"))
    assert cluster.run(TxnCommand, "resolve", *words, "--rolled-back", *token) == 1
    report = capsys.readouterr().out
    assert f"transaction {starts[0]} is recorded as rolled back" in report
    assert "transaction 7 was not decided" in report
    assert report.endswith("2 decided, 1 refused\n")
    assert cluster.run(TxnCommand, "list", "--pump", "pump1") == 0
    assert capsys.readouterr().out.endswith("1 prewrites have no commit or rollback\n")
    with pytest.raises(ConfigError, match="only one transaction"):
        cluster.run(TxnCommand, "resolve", *words, "--commit-ts", "9", "--pump", "pump1")


def test_give_up_requires_accept_loss(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    pump = build_pump("pump1")
    start, commit_ts = cluster.pd.fetch_ts(), cluster.pd.fetch_ts()
    lonely = build.build_commit(build.build_prewrite(start, b"k", VALUE), commit_ts)
    stored = write_binlog(pump.service, cluster.pd.fetch_cluster_id(), lonely.SerializeToString())
    assert stored is not None
    stored.result(60)
    awaited(lambda: pump.service.build_info().max_commit_ts >= commit_ts)
    words = ("give-up", str(start), "--commit-ts", str(commit_ts), "--pump", "pump1")
    assert cluster.run(TxnCommand, *words) == 1
    assert "missing downstream" in capsys.readouterr().out
    token = str(pump._config.data_dir / "admin-token")
    assert cluster.run(TxnCommand, *words, "--accept-loss", "--token-file", token) == 0
    assert tuple(pump.service.build_info().lost_commit_ts) == (commit_ts,)


@pytest.mark.long
def test_pumps_names_the_blocking_prewrite(
    cluster: Cluster, build_pump: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    pump = build_pump("pump1")
    start = cluster.pd.fetch_ts()
    stored = write_binlog(
        pump.service, cluster.pd.fetch_cluster_id(), build.build_prewrite(start, b"k", VALUE).SerializeToString()
    )
    assert stored is not None
    stored.result(60)
    awaited(lambda: f"start_ts={start}" in pump.service.build_info().last_error)
    assert cluster.run(control.PumpsCommand) == 0
    assert f"pump1: blocked: prewrite start_ts={start} key=6b" in capsys.readouterr().out
    assert cluster.run(control.PumpsCommand, "--output", "json") == 0
    assert f"start_ts={start}" in json.loads(capsys.readouterr().out.splitlines()[-1])[0]["problem"]
