"""The capture's status port answers like a TiDB, byte for byte, as of the replay clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_capture import write_capture

from binlake.cluster.source import Absent, Committed, Locked, RolledBack, TidbSource
from binlake.errors import ConfigError, Transient
from binlake.pump_service.statusport import PrewrittenTransaction, StatusJobs, StatusServer, format_go_json
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes, RecordedMvcc, build_status_server
from binlake.testkit.replay.replayer import ReplayClock
from binlake.wire import binlog_pb2 as pb

RECORDED = Path(__file__).parents[2] / "fixtures" / "status_port"
FOREVER = 1 << 62
P, C, R = pb.Prewrite, pb.Commit, pb.Rollback
JOBS = [
    {"id": 7, "query": "a < b && c > d \u2028", "binlog": {"SchemaVersion": 1, "FinishedTS": 40}},
    {"id": 5, "query": "late", "binlog": {"SchemaVersion": 2, "FinishedTS": 60}},
]


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((RECORDED / name).read_text())
    return answer


class Moment:
    """A clock that a test sets."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def moment() -> Moment:
    return Moment(FOREVER)


@pytest.fixture
def server(tmp_path: Path, moment: Moment) -> Iterator[StatusServer]:
    binlogs = [(P, 10, 0), (P, 20, 0), (C, 10, 30), (R, 20, 0), (P, 50, 0), (C, 50, 70)]
    capture = write_capture(tmp_path, binlogs, jobs=JOBS)
    with build_status_server(capture, Outcomes.of(capture), moment) as server:
        yield server


def test_history_is_byte_equal_to_a_recorded_answer() -> None:
    answer = recorded("ddl_history_limit3.json")
    jobs = json.loads(answer["body"])
    assert format_go_json(StatusJobs(reversed(jobs)).list_finished_jobs(FOREVER, 0, 3)) == answer["body"]


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.glob("mvcc_*.json")))
def test_transaction_status_is_byte_equal_to_a_recorded_answer(name: str) -> None:
    answers = [recorded(path.name) for path in sorted(RECORDED.glob("mvcc_*.json"))]
    by_key: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        by_key.setdefault(answer["path"].rpartition("/")[2], []).append(json.loads(answer["body"]))
    outcomes = json.loads((RECORDED / "outcomes.json").read_text())
    known = Outcomes(
        PrewrittenTransaction(int(o["start_ts"]), bytes.fromhex(o["primary_key_hex"]), int(o.get("commit_ts", 0)), True)
        for o in outcomes
        if "primary_key_hex" in o
    )
    body = recorded(name)["body"]
    info = json.loads(body)["value"]["info"]
    seen = [write["commit_ts"] for write in info["writes"]] + [info.get("lock", {}).get("start_ts", 0)]
    key = recorded(name)["path"].rpartition("/")[2]
    assert format_go_json(RecordedMvcc(known, by_key).answer(bytes.fromhex(key), max(seen) + 1)) == body


def test_an_unwritten_key_is_answered_as_tidb_does() -> None:
    answer = format_go_json(RecordedMvcc(Outcomes([]), {}).answer(b"\x74\xff", FOREVER))
    assert answer == '{\n "key": "74FF",\n "region_id": 1,\n "value": {\n  "info": {}\n }\n}'


def test_status_and_info_have_the_recorded_structure(server: StatusServer) -> None:
    assert shape(httpx.get(f"{server.url}/status", timeout=60).json()) == shape(
        json.loads(recorded("status.json")["body"])
    )
    found = httpx.get(f"{server.url}/info/all", timeout=60).json()
    expected = json.loads(recorded("info_all.json")["body"])
    assert list(found) == list(expected)
    assert found["owner_id"] in found["all_servers_info"]
    assert shape(*found["all_servers_info"].values()) == shape(*expected["all_servers_info"].values())
    assert shape(*found["all_servers_info"].values())["binlog_status"] == "str"


def shape(value: dict[str, Any]) -> dict[str, str]:
    return {name: type(field).__name__ for name, field in value.items()}


def test_headers_and_errors_are_those_of_tidb(server: StatusServer) -> None:
    good = httpx.get(f"{server.url}/ddl/history?limit=1", timeout=60)
    assert good.headers["content-type"] == "application/json"
    assert httpx.get(f"{server.url}/ddl/history?limit=x", timeout=60).status_code == 400
    assert httpx.get(f"{server.url}/ddl/history?limit=1025", timeout=60).status_code == 400
    assert httpx.get(f"{server.url}/mvcc/hex/zz", timeout=60).status_code == 400
    assert httpx.get(f"{server.url}/nothing", timeout=60).status_code == 404


def test_a_job_is_shown_only_after_its_end(server: StatusServer, moment: Moment) -> None:
    source = TidbSource(NoClock(), server.url)
    seen = {}
    for now in (40, 41, 60, 61):
        moment.now = now
        seen[now] = [job["id"] for job in source.fetch_ddl_jobs(0)]
    assert seen == {40: [], 41: [7], 60: [7], 61: [7, 5]}


def test_special_characters_of_a_job_are_escaped_as_by_go(server: StatusServer) -> None:
    assert list(TidbSource(NoClock(), server.url).fetch_ddl_jobs(0)) == JOBS
    assert (
        "\\u003c b \\u0026\\u0026 c \\u003e d \\u2028"
        in httpx.get(f"{server.url}/ddl/history?limit=9", timeout=60).text
    )


@pytest.mark.parametrize(
    ("now", "first", "second", "third"),
    [
        (11, Locked(), Absent(), Absent()),
        (30, Locked(), RolledBack(), Absent()),
        (31, Committed(30), RolledBack(), Absent()),
        (70, Committed(30), RolledBack(), Locked()),
        (71, Committed(30), RolledBack(), Committed(70)),
    ],
)
def test_a_transaction_is_locked_until_its_commit_has_passed(
    server: StatusServer, moment: Moment, now: int, first: object, second: object, third: object
) -> None:
    moment.now = now
    source = TidbSource(NoClock(), server.url)
    statuses = [source.fetch_transaction_status(start, str(start).encode()) for start in (10, 20, 50)]
    assert statuses == [first, second, third]


def test_an_address_in_use_is_one_clear_error(server: StatusServer, tmp_path: Path) -> None:
    capture = Capture(tmp_path)
    with pytest.raises(ConfigError, match="cannot listen"):
        build_status_server(capture, Outcomes([]), lambda: 0, server.url.removeprefix("http://"))


def test_a_stopping_server_answers_503_on_open_connections(
    server: StatusServer, moment: Moment, capfd: pytest.CaptureFixture[str]
) -> None:  # otherwise a pump would get outdated locks forever
    moment.now = 11
    path = f"{server.url}/mvcc/hex/{b'10'.hex()}"
    with httpx.Client(timeout=60, trust_env=False) as client:
        assert client.get(path).status_code == 200
        server.stop()
        answer = client.get(path)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        with pytest.raises(httpx.ConnectError):
            client.get(path)
    assert "Traceback" not in capfd.readouterr().err


def test_a_failing_answer_is_an_error_without_traceback(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: str) -> str:
        raise Transient("the journal fails")

    monkeypatch.setattr(server, "answer", fail)
    answer = httpx.get(f"{server.url}/mvcc/hex/00", timeout=60)
    assert (answer.status_code, answer.text) == (503, "the journal fails")
    assert "Traceback" not in capfd.readouterr().err


class NoClock:
    def fetch_ts(self, count: int = 1) -> int:
        raise AssertionError(f"asked for {count} timestamps")


class Lead:
    """Records the calls of the replay clock to PD."""

    def __init__(self, last: int = 0) -> None:
        self.bounds: list[int] = []
        self.released = False
        self.last = last

    def lead(self, bound: int) -> int:
        self.bounds.append(bound)
        return self.last

    def release(self) -> int:
        self.released = True
        return self.last


def test_the_replay_clock_never_decreases_and_advances_after_the_release() -> None:
    pd = Lead()
    clock = ReplayClock(pd)
    for bound in (5, 9, 7, 9):
        clock.lead(bound)
    assert pd.bounds == [5, 9]
    assert clock.read_ts() == 9
    clock.release()
    assert pd.released
    assert clock.read_ts() >= 9


def test_a_second_replay_into_the_same_cluster_is_refused() -> None:
    ReplayClock(Lead(last=49)).lead(50)
    with pytest.raises(ConfigError, match="given out the timestamp 50, but the replay needs PD's clock below 50"):
        ReplayClock(Lead(last=50)).lead(50)
