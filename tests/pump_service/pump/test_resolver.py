"""Resolving orphan P: only a record of the source proves anything (hazards R-07; answers as TiDB v7.5 gives them)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import prewrite, settled, store, until

from binlake.source import TidbSource
from binlake.wire import build
from pump_service.pump.resolver import NoStatusSource, Resolver
from pump_service.pump.storage import Storage


def answer(**info: object) -> str:
    """The body of TiDB's status port."""
    return json.dumps({"key": "7480", "region_id": 2, "value": {"info": info}})


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
    source = TidbSource(MemoryCluster(), ["http://127.0.0.1:1", url])  # the first one is down: the next is asked
    resolver = Resolver(storage, source)
    store(storage, prewrite(100), prewrite(200), build.fake(700))
    until(lambda: storage.unmatched() == (2, 100), "both wait")
    resolver.round()
    assert asked == []  # they may be on their way
    resolver.round()
    assert asked == ["/mvcc/hex/" + b"k100".hex(), "/mvcc/hex/" + b"k200".hex()]
    assert "start_ts=100" in resolver.blocked
    assert "HTTP 400" in resolver.blocked
    assert settled(storage) == []

    answers[asked[0]] = answer(lock={"start_ts": 100})
    resolver.round()
    assert "lock is still there" in resolver.blocked
    answers[asked[0]] = answer()  # neither lock nor write: collected by TiKV, perhaps; no proof of anything
    resolver.round()
    assert "neither lock nor write" in resolver.blocked
    assert storage.watermark == 0
    answers[asked[0]] = answer(writes=[{"start_ts": 100, "commit_ts": 500}])
    answers[asked[1]] = answer(writes=[{"type": 3, "start_ts": 200, "commit_ts": 200}])
    resolver.round()
    until(lambda: storage.watermark == 700, "both are resolved")
    assert [ts for _, ts, _ in settled(storage)] == [500, 700]
    resolver.round()
    assert (resolver.blocked, resolver.queries) == ("", 8)
    source.close()


def test_without_anybody_to_ask_a_prewrite_blocks_and_says_so(storage: Storage) -> None:
    resolver = Resolver(storage, NoStatusSource())
    store(storage, prewrite(100))
    until(lambda: storage.unmatched() == (1, 100), "it waits")
    resolver.round()
    resolver.round()
    assert "--status-url" in resolver.blocked
