"""An HTTP proxy in front of an object store: it counts requests, and answers some as a store in trouble does.

It is a process of its own: some calls of delta-rs keep Python's lock while they wait for an answer.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from deploy.local.azurite import ACCOUNT

_SPAWN = multiprocessing.get_context("spawn")
_CONTROL = "/-control"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"


@dataclass(frozen=True)
class Trouble:
    """What the store does wrong: each number is the share of requests (0 to 1).

    `slow_down`: answers 503; `fails`: answers 500; `slow`: waits `slow_s` first; `loses`: does what a put asks, then
    closes the connection without an answer; `late`: does it, then answers 500. `only`: a pattern of the keys that have
    trouble. `refuses`: the code with which it refuses all requests; `ignores`: lower-case names of headers that it does
    not know.
    """

    slow_down: float = 0
    fails: float = 0
    slow: float = 0
    slow_s: float = 0.5
    loses: float = 0
    late: float = 0
    only: str = ""
    refuses: str = ""
    ignores: tuple[str, ...] = ()
    seed: int = 1


@dataclass(frozen=True)
class Request:
    """`kind`: GET, HEAD, PUT, DELETE, POST or LIST; `key`: of the object, or a list's prefix; `agent`: the client."""

    kind: str
    key: str
    status: int
    agent: str


class S3Proxy:
    """Forwards requests to `url` to the store at `server_port` on loopback."""

    def __init__(self, server_port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process = _SPAWN.Process(target=_serve, args=(self._listener, server_port), daemon=True)

    def take_requests(self) -> list[Request]:
        """The requests since the last call, in order of their ends."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}{_CONTROL}").raise_for_status().json()
        return [Request(**one) for one in found]

    def set_trouble(self, trouble: Trouble) -> None:
        """Have this trouble from now on; `Trouble()` has none."""
        httpx.put(f"{self.url}{_CONTROL}", json=asdict(trouble)).raise_for_status()

    def __enter__(self) -> S3Proxy:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def count_by_table(requests: list[Request], prefix: str) -> Counter[tuple[str, str, str]]:
    """The number of requests by (table, part of it, kind); `prefix` is that of the lake in its bucket."""
    return Counter((*_name_place(one.key.removeprefix(prefix)), one.kind) for one in requests)


def _name_place(key: str) -> tuple[str, str]:
    table, log, file = key.strip("/").partition("/_delta_log")
    if log:
        return table, "last" if file.endswith("_last_checkpoint") else "log"
    if key.startswith("_"):
        return key.split("/")[0], ""
    return re.sub(r"/[^/]*=[^/]*/.*|/[^/]*\.parquet$", "", key), "data"


@dataclass
class _State:
    port: int
    trouble: Trouble = Trouble()
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def _serve(listener: socket.socket, server_port: int) -> None:
    state = _State(server_port)
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: _State

    def _forward(self) -> None:
        body = self._read_body()
        if self.path == _CONTROL:
            self._control(body)
            return
        key, kind = self._name_request()
        answer = self._cause_trouble(key)
        writes, trouble = answer is None and self.command in ("PUT", "POST"), self.state.trouble
        status, headers, content = answer or self._ask(body)
        if writes and self._happens(key, trouble.late):
            status, headers, content = 500, [], _INTERNAL
        loses = writes and self._happens(key, trouble.loses)
        with self.state.lock:
            self.state.requests.append(Request(kind, key, status, self.headers.get("User-Agent", "")))
        if loses:
            self.close_connection = True
            return
        self._answer(status, headers, content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _name_request(self) -> tuple[str, str]:
        asked = urlsplit(self.path)
        path, query = asked.path.removeprefix(f"/{ACCOUNT}"), parse_qs(asked.query)
        key = unquote(path.strip("/").partition("/")[2])
        if self.command == "GET" and ("list-type" in query or not key):
            return query.get("prefix", [""])[0], "LIST"
        return key, self.command

    def _happens(self, key: str, share: float) -> bool:
        with self.state.lock:
            return re.search(self.state.trouble.only, key) is not None and self.state.draw.random() < share

    def _cause_trouble(self, key: str) -> tuple[int, list[tuple[str, str]], bytes] | None:
        trouble = self.state.trouble
        if self._happens(key, trouble.slow):
            time.sleep(trouble.slow_s)
        if trouble.refuses:
            return 403, [], f"<Error><Code>{trouble.refuses}</Code><Message>refused</Message></Error>".encode()
        if self._happens(key, trouble.slow_down):
            return 503, [], _SLOW_DOWN
        return (500, [], _INTERNAL) if self._happens(key, trouble.fails) else None

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        server = http.client.HTTPConnection("127.0.0.1", self.state.port)
        left_out = ("transfer-encoding", "content-length", "connection", "expect", *self.state.trouble.ignores)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        server.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
        with server.getresponse() as found:
            return found.status, found.getheaders(), found.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        named = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        if "content-length" not in named:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(ConnectionError):  # the client has had enough of it
                self.wfile.write(content)

    def _control(self, body: bytes) -> None:
        with self.state.lock:
            if self.command == "PUT":
                self.state.trouble = Trouble(**json.loads(body))
                self.state.draw = random.Random(self.state.trouble.seed)
            found, self.state.requests = self.state.requests, []
        self._answer(200, [], json.dumps([asdict(one) for one in found]).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""
