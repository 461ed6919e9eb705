"""One suite for every status port: a capture's own one, and answers recorded from real TiDBs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from binlake.capture import Capture
from binlake.errors import SourceUnavailable, WireError
from binlake.source import Committed, Locked, RolledBack, TidbSource, Unknown, read_status
from binlake.source.tidb import PAGE
from pump_service.replay.outcomes import Outcomes
from pump_service.replay.status_server import StatusServer

CAPTURES = Path(__file__).parents[1] / "captures"
FOREVER = 1 << 62


class NoClock:
    """A PD that nobody should ask."""

    def tso(self, count: int = 1) -> int:
        raise AssertionError(f"asked for {count} timestamps")


@dataclass
class Served:
    """A status port, the jobs it holds by id, and the requests it got."""

    source: TidbSource
    jobs: dict[int, dict[str, object]]
    requests: list[str]


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], tuple[int, str]]], str]]:
    """Serves a function of the request target on a free port."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[str], tuple[int, str]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, body = answer(self.path)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def recorded_tidb(
    jobs: list[dict[str, object]], inclusive: bool, requests: list[str]
) -> Callable[[str], tuple[int, str]]:
    """A status port of recorded jobs; versions differ in whether start_job_id itself is in the answer."""

    def answer(target: str) -> tuple[int, str]:
        requests.append(target)
        query = {name: int(values[0]) for name, values in parse_qs(urlsplit(target).query).items()}
        start = query.get("start_job_id", 0)
        newest = sorted(jobs, key=lambda job: -int(str(job["id"])))
        shown = [j for j in newest if not start or int(str(j["id"])) < start + inclusive]
        return 200, json.dumps(shown[: query["limit"]])

    return answer


@pytest.fixture(params=["capture", "tidb inclusive", "tidb exclusive"])
def port(request: pytest.FixtureRequest, serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> Iterator[Served]:
    capture = Capture(CAPTURES / "shard")
    jobs = {int(job["id"]): job for job in capture.jobs()}
    requests: list[str] = []
    if request.param == "capture":
        with StatusServer.of_capture(capture, Outcomes.of(capture), lambda: FOREVER) as server:
            yield Served(TidbSource(NoClock(), server.url), jobs, requests)
        return
    url = serve(recorded_tidb(list(jobs.values()), request.param.endswith("inclusive"), requests))
    yield Served(TidbSource(NoClock(), url), jobs, requests)


def test_jobs_come_newest_first_and_each_once(port: Served) -> None:
    assert len(port.jobs) > PAGE, "the suite must cross a page"
    assert list(port.source.ddl_jobs(0)) == [port.jobs[n] for n in sorted(port.jobs, reverse=True)]


def test_jobs_end_above_the_one_already_known(port: Served) -> None:
    ids = sorted(port.jobs, reverse=True)
    assert [job["id"] for job in port.source.ddl_jobs(ids[3])] == ids[:3]
    assert list(port.source.ddl_jobs(ids[0])) == []


def test_history_is_read_page_by_page(port: Served) -> None:  # invariant 5: never loaded whole
    first = next(port.source.ddl_jobs(0))
    assert first["id"] == max(port.jobs)
    assert len(port.requests) <= 1
    assert all("limit=" in request for request in port.requests)


def test_jobs_by_id(port: Served) -> None:
    ids = sorted(port.jobs)
    wanted = [ids[0], ids[5], ids[40], ids[-1]]
    assert port.source.ddl_jobs_by_id(wanted) == {n: port.jobs[n] for n in wanted}
    assert port.source.ddl_jobs_by_id([]) == {}


def test_a_job_that_is_not_finished_is_missing(port: Served) -> None:
    absent = max(port.jobs) + 1
    assert port.source.ddl_jobs_by_id([absent]) == {}
    assert set(port.source.ddl_jobs_by_id([absent, min(port.jobs)])) == {min(port.jobs)}


def test_an_empty_history(serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> None:
    source = TidbSource(NoClock(), serve(lambda _: (200, "null")))
    assert list(source.ddl_jobs(0)) == []
    assert source.ddl_jobs_by_id([7]) == {}


def test_a_port_that_does_not_page_is_told_not_looped(serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> None:
    jobs = [{"id": n} for n in range(200, 200 - PAGE, -1)]
    source = TidbSource(NoClock(), serve(lambda _: (200, json.dumps(jobs))))
    with pytest.raises(WireError, match="does not page"):
        list(source.ddl_jobs(0))


@pytest.mark.parametrize("body", ["{", '{"id": 1}', '[{"type": 3}]', "[1]"])
def test_a_strange_answer_is_one_clear_error(
    serve: Callable[[Callable[[str], tuple[int, str]]], str], body: str
) -> None:
    with pytest.raises(WireError, match="no list of DDL jobs"):
        list(TidbSource(NoClock(), serve(lambda _: (200, body))).ddl_jobs(0))


def test_the_next_url_is_tried_and_every_failure_is_named(
    serve: Callable[[Callable[[str], tuple[int, str]]], str],
) -> None:
    broken = serve(lambda _: (500, "no leader"))
    good = serve(lambda _: (200, "[]"))
    assert list(TidbSource(NoClock(), f"{broken}, {good}").ddl_jobs(0)) == []
    with pytest.raises(SourceUnavailable, match=r"HTTP 500 no leader.*127\.0\.0\.1:1:"):
        list(TidbSource(NoClock(), [broken, "http://127.0.0.1:1"]).ddl_jobs(0))


def test_transaction_status_is_asked_by_key(serve: Callable[[Callable[[str], tuple[int, str]]], str]) -> None:
    asked: list[str] = []

    def answer(target: str) -> tuple[int, str]:
        asked.append(target)
        return 200, '{"value": {"info": {"writes": [{"start_ts": 5, "commit_ts": 8}]}}}'

    source = TidbSource(NoClock(), serve(answer))
    assert source.transaction_status(5, b"\x74\xff") == Committed(8)
    assert asked == ["/mvcc/hex/74ff"]
    assert isinstance(source.transaction_status(5, b""), Unknown)
    assert len(asked) == 1


LOCKED = '{"value": {"info": {"lock": {"start_ts": 5, "primary": "dA==", "ttl": 3000}, "writes": [{"start_ts": 3, "commit_ts": 4}]}}}'  # noqa: E501


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ('{"value": {"info": {"writes": [{"start_ts": 5, "commit_ts": 8, "type": 1}]}}}', Committed(8)),
        ('{"info": {"writes": [{"start_ts": 5, "commit_ts": 8}]}}', Committed(8)),
        ('{"value": {"info": {"writes": [{"type": 3, "start_ts": 5, "commit_ts": 5}]}}}', RolledBack()),
        (LOCKED, Locked(3000)),
    ],
)
def test_only_a_write_record_proves(body: str, status: object) -> None:
    assert read_status(body, 5) == status


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "{", '{"value": null}', '{"value": {"info": {}}}', '{"value": {"info": {"writes": 3}}}',
        '{"value": {"info": {"writes": [{"start_ts": "x"}]}}}', '{"value": {"info": {"writes": [{"start_ts": 5}]}}}',
        '{"value": {"info": {"writes": [{"start_ts": 6, "commit_ts": 8}]}}}',
    ],
)  # fmt: skip
def test_everything_else_is_unknown(body: str) -> None:
    assert isinstance(read_status(body, 5), Unknown)
