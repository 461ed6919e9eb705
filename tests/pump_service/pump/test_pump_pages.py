"""The pages of a pump: the original's answers, byte for byte where they were recorded (tidb-binlog 2.13, 2.14)."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import grpc
import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, until
from support import alert_rules
from support.pump_calls import write_binlog

from binlake.cluster.placement import NodeStatus
from binlake.cluster.source import Committed, Locked, RolledBack, Status, Unknown
from binlake.errors import Permanent
from binlake.pump_service.pump.pages import as_text
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State
from binlake.rpc.request import HttpRequest, HttpResponse
from binlake.wire import pump_pb2, pump_pb2_grpc
from binlake.wire.binlog_pb2 import Binlog, PrewriteValue, Rollback, TableMutation

WIRE = Path(__file__).resolve().parents[2] / "fixtures" / "wire"


def recorded() -> dict[str, tuple[int, dict[str, str], bytes]]:
    """`METHOD /path` -> (status, headers, body) of the original."""
    answers = {}
    for part in re.split(r"^### curl -X ", (WIRE / "http-pump.txt").read_text(), flags=re.M)[1:]:
        request, _, answer = part.partition("\n")
        method, url = request.split()[:2]
        head, _, body = answer.partition("\n\n")
        status, *lines = head.splitlines()
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("Content-Length", len(body)))
        path = url.removeprefix("http://127.0.0.1:8250")
        answers[f"{method} {path}"] = int(status.split()[1]), headers, body.encode()[:length]
    return answers


def ask(pump: PumpServer, method: str, path: str, **query: str) -> HttpResponse:
    token = (pump._config.data_dir / "admin-token").read_text().strip()
    return pump.pages(HttpRequest(method, path, query, {"authorization": f"Bearer {token}"}, b""))


def envelope(answer: HttpResponse) -> tuple[str, int]:
    content = json.loads(answer.body)
    return content["message"], content["code"]


def write(pump: PumpServer, cluster: MemoryCluster, *binlogs: Binlog) -> None:
    for binlog in binlogs:
        stored = write_binlog(pump.service, cluster.id, binlog.SerializeToString())
        assert stored is not None
        stored.result(60)


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /debug/binlog/470613798705430542",
        "GET /debug/binlog/x",
        "GET /nosuch",
        "PUT /state/nosuch/pause",
        "PUT /state/pump1/frobnicate",
        "GET /state/pump1/pause",
    ],
)
def test_an_answer_equals_the_recorded_one(build_pump: MakePump, request_line: str) -> None:
    status, headers, body = recorded()[request_line]
    method, path = request_line.split()
    answer = ask(build_pump(), method, path)
    assert (answer.status, answer.body) == (status, body)
    assert not body or answer.content_type == headers["Content-Type"]


def test_status_and_drainers_have_the_recorded_form(build_pump: MakePump, cluster: MemoryCluster) -> None:
    entries = json.loads(recorded()["GET /status"][2])["status"].values()
    drainers = recorded()["GET /drainers"]
    pump = build_pump("ours")
    cluster.consumers = [NodeStatus.from_json(json.dumps(one).encode(), "k") for one in json.loads(drainers[2])]
    assert ask(pump, "GET", "/drainers").body == drainers[2]
    entry = cluster.nodes["ours"]
    cluster.nodes = {key: NodeStatus.from_json(json.dumps(one).encode(), key) for key, one in
                     ((one["nodeId"], one) for one in entries)} | {"ours": entry}  # fmt: skip
    answer = ask(pump, "GET", "/status")
    assert answer.content_type == recorded()["GET /status"][1]["Content-Type"]
    content = json.loads(answer.body)
    assert list(content) == ["status", "CommitTS", "Checkpoint", "ErrMsg"]
    assert content["CommitTS"] > entry.update_ts - (1 << 40)
    recorded_status = recorded()["GET /status"][2].partition(b',"CommitTS"')[0][:-1]
    assert recorded_status.removeprefix(b'{"status":{') in answer.body


def test_status_shows_that_pd_does_not_answer(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    cluster.down = True
    content = json.loads(ask(pump, "GET", "/status").body)
    cluster.down = False
    assert "PD does not answer" in content["ErrMsg"]


def test_a_stored_binlog_is_shown_as_the_original_shows_it() -> None:
    text = recorded()["GET /debug/binlog/0"][2].decode().partition("\n")[0]
    key = b"t\x80\x00\x00\x00\x00\x00\x00\x81_r\x80\x00\x00\x00\x00\x00\x0b\x98"
    binlog = Binlog(tp=Rollback, start_ts=470613872840016011, commit_ts=0, prewrite_key=key, ddl_job_id=0)
    assert as_text(binlog.SerializeToString()) == text + "\n"


def test_a_stored_transaction_is_shown_with_its_tables_and_rows(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # S0-75
    pump = build_pump()
    tables = [TableMutation(table_id=45, inserted_rows=[b"a", b"b"], deleted_rows=[b"c"]), TableMutation(table_id=46)]
    value = PrewriteValue(schema_version=23, mutations=tables).SerializeToString()
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start, value))
    commit_ts = cluster.fetch_ts()
    write(pump, cluster, commit(start, commit_ts))
    until(lambda: pump.service.build_info().max_commit_ts >= commit_ts, "the transaction is indexed")
    shown = json.loads(ask(pump, "GET", f"/debug/binlog/{commit_ts}", format="json").body)
    assert (shown["code"], shown["data"]["type"]) == (200, "Commit")
    assert (shown["data"]["start_ts"], shown["data"]["commit_ts"]) == (str(start), str(commit_ts))
    assert shown["data"]["tables"][0] == {"table_id": 45, "inserted": 2, "updated": 0, "deleted": 1}
    assert f"tp:Prewrite start_ts:{start} " in ask(pump, "GET", f"/debug/binlog/{start}").body.decode()
    assert envelope(ask(pump, "GET", "/debug/binlog/7", format="json"))[1] == 2
    assert envelope(ask(pump, "GET", "/debug/binlog/x", format="json"))[1] == 1


def test_pause_is_accepted_once_and_only_while_online(build_pump: MakePump) -> None:
    pump = build_pump()
    assert envelope(ask(pump, "PUT", "/state/pump1/pause")) == ("apply action pause success!", 200)
    assert pump.serve() == "paused"
    message, code = envelope(ask(pump, "PUT", "/state/pump1/close"))
    assert (message, code) == ("this pump's state is paused, apply close failed!", 3)


def test_every_metric_of_the_original_exists_with_its_type_and_labels(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start), commit(start, cluster.fetch_ts()))
    page = ask(pump, "GET", "/metrics")
    assert page.content_type.startswith("text/plain; version=0.0.4")
    ours, theirs = series(page.body.decode()), series((WIRE / "metrics-pump.txt").read_text())
    missing = {name for name in theirs if name.startswith("binlog_")} - set(ours)
    assert missing == UNKNOWN_HERE
    for name in set(theirs) & set(ours):
        assert ours[name][0] == theirs[name][0], name
        assert ours[name][1] <= theirs[name][1], f"labels and buckets of {name}"


def test_alert_rules_and_board_use_series_that_the_page_has(
    build_pump: MakePump, cluster: MemoryCluster
) -> None:  # U-02
    pump = build_pump()
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start), commit(start, cluster.fetch_ts()))
    # Counted by kind, so a series exists only after the first one of its kind.
    pump.service.metrics.errors.add("write")
    shown = [sample(line) for line in ask(pump, "GET", "/metrics").body.decode().splitlines() if line[0] != "#"]
    assert alert_rules.find_missing_series("binlake-pumps", shown) == {}
    assert alert_rules.find_missing_on_board("pump", shown) == {}


def sample(line: str) -> tuple[str, frozenset[str]]:
    """Name and labels of a line of the page."""
    name, _, labels = line.rpartition(" ")[0].removesuffix("}").partition("{")
    return name, frozenset(labels.split(","))


UNKNOWN_HERE = {
    # A drainer's metric that the original pump shows by mistake.
    "binlog_drainer_slow_chaser_catchup_time_seconds",
}


def series(page: str) -> dict[str, tuple[str, set[str]]]:
    """Metric -> (type, label sets); histograms count by the name without suffix."""
    types = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    metrics: dict[str, tuple[str, set[str]]] = {name: (kind, set()) for name, kind in types.items()}
    for line in page.splitlines():
        name = re.split(r"[{ ]", line)[0]
        base = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
        if base in metrics and "{" in line:
            metrics[base][1].add(line[line.index("{") : line.index("}") + 1])
    return metrics


def value(pump: PumpServer, sample: str) -> float:
    lines = ask(pump, "GET", "/metrics").body.decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{sample} ")), 0.0)


def test_failures_after_the_cluster_check_are_counted(build_pump: MakePump, cluster: MemoryCluster) -> None:
    # tidb-binlog 2.8
    pump = build_pump()
    write(pump, cluster, prewrite(cluster.fetch_ts()))
    for cluster_id, payload in ((cluster.id, b"\xff"), (cluster.id, Binlog(tp=1).SerializeToString())):
        with pytest.raises(Exception, match=r"binlog|start_ts"):
            write_binlog(pump.service, cluster_id, payload)
    with pytest.raises(Exception, match="cluster id"):
        write_binlog(pump.service, cluster.id + 1, b"")
    write_binlog(pump.service, cluster.id, b"")
    # The answer is sent before it is counted.
    until(
        lambda: value(pump, 'binlog_pump_storage_write_binlog_size_count{type="single"}') == 1, "the write is counted"
    )
    assert value(pump, "binlog_pump_loss_binlog_count") == 2
    assert value(pump, 'binlog_pump_rpc_duration_seconds_count{label="succ",method="WriteBinlog"}') == 2
    assert value(pump, 'binlog_pump_rpc_duration_seconds_count{label="fail",method="WriteBinlog"}') == 2


def test_a_refusal_over_the_network_is_counted_once(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    pump.service.state = State.PAUSING
    with grpc.insecure_channel(pump.addr) as channel:
        request = pump_pb2.WriteBinlogReq(clusterID=cluster.id, payload=prewrite(5).SerializeToString())
        with pytest.raises(grpc.RpcError, match="pausing"):
            pump_pb2_grpc.PumpStub(channel).WriteBinlog(request, timeout=60)
    assert value(pump, "binlog_pump_loss_binlog_count") == 1


def test_batches_and_syncs_are_timed(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump(gen_binlog_interval_s=60.0)
    size, seconds = "binlog_pump_storage_write_binlog_size", "binlog_pump_storage_write_binlog_duration_time"
    before = value(pump, f'{size}_sum{{type="batch"}}')
    binlog = prewrite(cluster.fetch_ts())
    write(pump, cluster, binlog)
    assert value(pump, f'{size}_sum{{type="batch"}}') - before >= len(binlog.SerializeToString())
    counts = {kind: value(pump, f'{seconds}_count{{type="{kind}"}}') for kind in ("batch", "to_disk", "fsync")}
    assert set(counts.values()) == {value(pump, f'{size}_count{{type="batch"}}')}
    sums = [value(pump, f'{seconds}_sum{{type="{kind}"}}') for kind in ("fsync", "to_disk")]
    assert 0 < sums[0] < sums[1]


class Source:
    """Gives the same answer about every transaction."""

    def __init__(self) -> None:
        self.answer: Status = Unknown("its write record was collected")

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        del start_ts, key
        return self.answer


def test_an_operator_decides_transactions_unknown_to_the_source(build_pump: MakePump, cluster: MemoryCluster) -> None:
    #
    pump = build_pump(source=Source())
    first, second = cluster.fetch_ts(), cluster.fetch_ts()
    write(pump, cluster, prewrite(first), prewrite(second))
    until(lambda: pump.service.build_info().unmatched_prewrites == 2, "both wait")
    commit_ts = cluster.fetch_ts()
    message, code = envelope(ask(pump, "PUT", f"/txn/{first}/commit/{commit_ts}"))
    assert (message, code) == (f"transaction {first} is recorded as committed at {commit_ts}", 200)
    assert envelope(ask(pump, "PUT", f"/txn/{second}/rollback"))[1] == 200
    until(lambda: pump.service.build_info().unmatched_prewrites == 0, "none waits")
    assert value(pump, "binlake_pump_forced_resolutions_total") == 2
    assert pump.service.build_info().late_commits == 0
    message, code = envelope(ask(pump, "PUT", f"/txn/{first}/rollback"))
    assert "no prewrite with this start_ts waits in this pump" in message
    assert code == 3


def test_an_operator_cannot_decide_against_the_source(build_pump: MakePump, cluster: MemoryCluster) -> None:
    #
    source = Source()
    pump = build_pump(source=source, resolve_interval_s=60.0)
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start))
    until(lambda: pump.service.build_info().unmatched_prewrites == 1, "it waits")
    commit_ts = cluster.fetch_ts()
    for answer, asked, reason in (
        (Locked(), f"commit/{commit_ts}", "lock still exists"),
        (RolledBack(), f"commit/{commit_ts}", "rolled back"),
        (Committed(commit_ts), "rollback", f"committed at {commit_ts}"),
        (Committed(commit_ts), f"commit/{commit_ts + 1}", f"committed at {commit_ts}"),
    ):
        source.answer = answer
        message, code = envelope(ask(pump, "PUT", f"/txn/{start}/{asked}"))
        assert code == 3
        assert reason in message
    message, code = envelope(ask(pump, "PUT", f"/txn/{start}/commit/{start - 5}"))
    assert (code, "cannot be the commit_ts" in message) == (1, True)
    assert pump.service.build_info().unmatched_prewrites == 1


@pytest.mark.parametrize("text", ["--5", "9" * 5000, "-", "1_0", "٣", "5-"])
def test_an_invalid_timestamp_gets_a_short_answer(build_pump: MakePump, text: str) -> None:
    pump = build_pump()
    answer = ask(pump, "GET", f"/debug/binlog/{text}")
    assert answer.body.decode() == f"invalid parameter ts: {text[:40]}"
    assert envelope(ask(pump, "GET", f"/debug/binlog/{text}", format="json"))[1] == 1
    for path in (f"/txn/{text}/rollback", f"/txn/7/commit/{text}", f"/txn/7/give-up/{text}"):
        message, code = envelope(ask(pump, "PUT", path))
        assert code == 1
        assert "not a timestamp" in message
    assert "not found" in ask(pump, "GET", "/debug/binlog/9223372036854775808").body.decode()


def test_the_text_of_a_large_binlog_uses_little_memory_and_shows_its_size() -> None:
    # 16 MiB took 884 MiB of memory when the text was written byte by byte.
    payload = prewrite(100, bytes(16 << 20)).SerializeToString()
    tracemalloc.start()
    try:
        text = as_text(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(payload), f"{peak >> 20} MiB"
    assert text.endswith(f'\\000"...({16 << 20} bytes) \n')
    assert text.startswith("tp:Prewrite start_ts:100 ")


def test_a_binlog_too_large_to_parse_is_shown_by_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.pages._PARSED_BYTES", 1000)
    assert as_text(commit(100, 150).SerializeToString()).startswith("tp:Commit start_ts:100 commit_ts:150 prewrite_key")
    assert as_text(prewrite(100, bytes(100_000)).SerializeToString()) == "tp:Prewrite start_ts:100 \n"


def test_the_status_page_names_what_blocks_the_pump(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    start = cluster.fetch_ts()
    write(pump, cluster, prewrite(start))

    def status_text() -> str:
        return str(json.loads(ask(pump, "GET", "/status").body)["ErrMsg"])

    until(lambda: f"blocked: prewrite start_ts={start} key=" in status_text(), "the blocking prewrite is named")
    listed = json.loads(ask(pump, "GET", "/txn").body)["data"]
    assert [one["start_ts"] for one in listed] == [str(start)]
    write(pump, cluster, commit(start, cluster.fetch_ts()))
    until(lambda: not status_text(), "nothing blocks the pump any more")


def probe(pump: PumpServer, path: str = "/readyz") -> tuple[int, str]:
    answer = pump.pages(HttpRequest("GET", path, {}, {}, b""))
    return answer.status, answer.body.decode()


def test_a_pump_is_ready_only_while_it_takes_prewrites(build_pump: MakePump, cluster: MemoryCluster) -> None:
    pump = build_pump()
    assert (probe(pump), probe(pump, "/healthz")) == ((200, "ok\n"), (200, "ok\n"))
    cluster.down = True
    until(lambda: probe(pump)[0] == 503, "the registry cannot be written")
    assert probe(pump)[1].startswith("registry: ")
    assert probe(pump, "/healthz") == (200, "ok\n")
    cluster.down = False
    until(lambda: probe(pump) == (200, "ok\n"), "the registry is written again")
    pump.stop()
    assert probe(pump) == (503, "the pump is paused\n")


def test_a_pump_with_a_full_disk_is_not_ready_without_any_write(build_pump: MakePump) -> None:
    status, text = probe(build_pump(stop_write_at_available_space=1 << 60))
    assert (status, "disk: " in text, "writes are refused" in text) == (503, True, True)


def test_a_pump_whose_disk_failed_a_sync_asks_for_a_restart(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = build_pump()

    def fail(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pump._storage.records._files, "sync", fail)
    with pytest.raises(Permanent, match="fdatasync"):
        write(pump, cluster, prewrite(cluster.fetch_ts()))
    status, text = probe(pump, "/healthz")
    assert (status, "Input/output" in text) == (503, True)
    assert probe(pump) == (503, text)
