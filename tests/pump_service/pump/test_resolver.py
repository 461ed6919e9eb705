"""Resolving orphan P: only a record of the source proves anything (hazards R-07; answers as TiDB v7.5 gives them)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pump_helpers import prewrite, settled, store, until

from binlake.wire import build
from pump_service.pump.resolver import (
    Committed,
    HttpStatusSource,
    NoStatusSource,
    Resolver,
    RolledBack,
    Status,
    Unknown,
    read_status,
)
from pump_service.pump.storage import Storage

TS = 470614441070166016


def answer(**info: object) -> str:
    """The body of TiDB's status port."""
    return json.dumps({"key": "7480", "region_id": 2, "value": {"info": info}})


OTHER = {"start_ts": TS + 5, "commit_ts": TS + 6, "short_value": "gAAC"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (answer(writes=[OTHER, {"start_ts": TS, "commit_ts": TS + 1}]), Committed(TS + 1)),  # Put has no type
        (answer(writes=[{"type": 1, "start_ts": TS, "commit_ts": TS + 2}]), Committed(TS + 2)),  # Delete
        (answer(writes=[{"type": 2, "start_ts": TS, "commit_ts": TS + 3}]), Committed(TS + 3)),  # Lock
        (answer(writes=[{"type": 3, "start_ts": TS, "commit_ts": TS}, OTHER]), RolledBack()),
        (json.dumps({"info": {"writes": [{"start_ts": TS, "commit_ts": TS + 1}]}}), Committed(TS + 1)),
    ],
)
def test_a_write_record_of_the_transaction_is_a_proof(body: str, expected: Status) -> None:
    assert read_status(body, TS) == expected


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(lock={"start_ts": TS, "primary": "dA=="}), "lock is still there"),
        (answer(writes=[OTHER]), "neither lock nor write"),
        (answer(), "neither lock nor write"),  # collected by TiKV, or never written: no proof of anything
        (answer(writes=[{"start_ts": TS}]), "without commit_ts"),
        ("[]", "unreadable"),
        ("not json", "unreadable"),
    ],
)
def test_everything_else_is_unknown(body: str, reason: str) -> None:
    status = read_status(body, TS)
    assert isinstance(status, Unknown)
    assert reason in status.reason


@pytest.fixture
def status_port() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """A status port on loopback: its url, its answers by path, the paths asked for."""
    answers: dict[str, str] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = answers.get(self.path, "").encode()
            self.send_response(200 if body else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", answers, asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = Storage(tmp_path)
    yield opened
    opened.close()


def test_orphans_end_by_the_answers_of_the_status_port(
    storage: Storage, status_port: tuple[str, dict[str, str], list[str]]
) -> None:
    # S0-49, R-07
    url, answers, asked = status_port
    source = HttpStatusSource(["http://127.0.0.1:1", url])  # the first one is down: the next is asked
    resolver = Resolver(storage, source)
    store(storage, prewrite(100), prewrite(200), build.fake(700))
    until(lambda: storage.unmatched() == (2, 100), "both wait")
    resolver.round()
    assert asked == []  # they may be on their way
    resolver.round()
    assert asked == ["/mvcc/hex/" + b"k100".hex(), "/mvcc/hex/" + b"k200".hex()]
    assert "start_ts=100" in resolver.blocked
    assert "unreachable" in resolver.blocked
    assert "answered 400" in resolver.blocked
    assert settled(storage) == []

    answers[asked[0]] = answer(writes=[{"start_ts": 100, "commit_ts": 500}])
    answers[asked[1]] = answer(writes=[{"type": 3, "start_ts": 200, "commit_ts": 200}])
    resolver.round()
    until(lambda: storage.watermark == 700, "both are resolved")
    assert [ts for _, ts, _ in settled(storage)] == [500, 700]
    resolver.round()
    assert (resolver.blocked, resolver.queries) == ("", 4)
    source.close()


def test_without_anybody_to_ask_a_prewrite_blocks_and_says_so(storage: Storage) -> None:
    resolver = Resolver(storage, NoStatusSource())
    store(storage, prewrite(100))
    until(lambda: storage.unmatched() == (1, 100), "it waits")
    resolver.round()
    resolver.round()
    assert "--status-url" in resolver.blocked
    assert isinstance(HttpStatusSource(["http://127.0.0.1:1"]).ask(1, b""), Unknown)
