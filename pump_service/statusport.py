"""The status port of a TiDB on loopback, as pumps and windows ask it.

It serves `/status`, `/info/all`, `/ddl/history` and `/mvcc/hex/KEY`, as of a clock.

Its answers come from what a feeder or a workload wrote, or from a recorded capture. The functions that build them are
pure and return the JSON of a real status port. Nothing at or after `now` has happened yet: a job is in the history once
its FinishedTS has passed; a transaction shows a lock from its start_ts, and a write record once its commit_ts has
passed (tidb-binlog 10.3, 10.5).
"""

from __future__ import annotations

import argparse
import base64
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import structlog

from binlake.errors import BinlakeError, ConfigError
from binlake.pump_service import monitoring
from binlake.pump_service.monitoring import Probes
from binlake.rpc import Tls

log = structlog.get_logger()

Json = dict[str, Any]
_ROLLBACK = 3

MAX_HISTORY = 1024
"""TiDB returns at most this many jobs at once."""

_HANDSHAKE_S = 10.0
_TEXT = "text/plain; charset=utf-8"
_ENDING = "the process ends: ask the next one\n"

Page = Callable[[], tuple[str, str]]
"""A page beside those of TiDB: (body, content type)."""


class StatusServer:
    """Serves `history` and `transactions` as of `now()`; `meta`: version and other facts, as in a capture's meta.json.

    `pages`: more of them, by path. `probed`: what `/healthz` and `/readyz` ask; without it the service is ready as long
    as it answers. `addr` is HOST:PORT, port 0 = a free one. `tls`: serve only by TLS. Raises
    ConfigError when it cannot listen, or for files of TLS.
    """

    def __init__(
        self,
        meta: Json,
        history: Jobs,
        transactions: Transactions,
        now: Callable[[], int],
        addr: str = "127.0.0.1:0",
        *,
        pages: Mapping[str, Page] | None = None,
        probed: Probes | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.pages = pages or {}
        self.probed = probed or Probes(monitoring.find_no_reason, monitoring.find_no_reason)
        self._meta = meta
        self._history = history
        self._transactions = transactions
        self._now = now
        self._started = int(time.time())
        self._is_ending = False
        self._scheme = "http" if tls is None else "https"
        host, _, port = addr.rpartition(":")
        try:
            self._server = _Port((host, int(port)), _build_handler(self), tls)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"the status port cannot listen: {error}", where={"addr": addr}, hint="give --status-addr HOST:PORT"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        """http://HOST:PORT, https:// with TLS."""
        host, port = self._server.server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"

    def start(self) -> None:
        """Serve in its own thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port; on connections that stay a question is answered with 503."""
        self._is_ending = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> StatusServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_ending(self) -> bool:
        """True from `stop` on: what is asked about may be closed."""
        return self._is_ending

    def answer(self, target: str) -> str | None:
        """The body for the request target, or None for an unknown path. Raises BadStatusRequest."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/status":
            return format_go_json(build_status(self._meta), indent=False)
        if parts.path == "/info/all":
            host, port = self._server.server_address[:2]
            return format_go_json(build_info_all(self._meta, str(host), int(port), self._started))
        if parts.path == "/ddl/history":
            return self._answer_jobs(query)
        if parts.path.startswith("/mvcc/hex/"):
            return format_go_json(
                self._transactions.answer(_parse_key(parts.path.removeprefix("/mvcc/hex/")), self._now())
            )
        return None

    def _answer_jobs(self, query: dict[str, str]) -> str:
        start, limit = _parse_number(query, "start_job_id"), _parse_number(query, "limit")
        if limit > MAX_HISTORY:
            raise BadStatusRequest(f"ddl history limit must be between 1 and {MAX_HISTORY}")
        return format_go_json(self._history.list_finished_jobs(self._now(), start, limit))


class BadStatusRequest(Exception):
    """The caller asked for something that a status port refuses with 400."""


class Transactions(Protocol):
    """Gives the outcomes of transactions."""

    def answer(self, key: bytes, now: int) -> Json:
        """The body of `/mvcc/hex/KEY` as of `now`."""


class Jobs(Protocol):
    """Gives the finished DDL jobs."""

    def list_finished_jobs(self, now: int, start_job_id: int = 0, limit: int = 0) -> list[Json]:
        """As `/ddl/history`: the newest `limit` first, from `start_job_id` downwards; 0, 0 = all, oldest first."""


class _Port(ThreadingHTTPServer):
    """With `tls`, each connection's handshake is its own thread's, so that a silent caller keeps nobody waiting."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: Tls | None) -> None:
        self._tls = tls
        self._context = tls.build_server_context(["http/1.1"]) if tls is not None else None
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None or self._context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_HANDSHAKE_S)
        try:
            with self._context.wrap_socket(request, server_side=True) as encrypted:
                encrypted.settimeout(None)
                if self._tls.allows(encrypted.getpeercert()):
                    super().finish_request(encrypted, client_address)
                else:
                    log.warning("caller_not_allowed", caller=str(client_address[0]))
        except OSError as error:  # of TLS too: a caller's, who sees the reason himself
            log.info("caller_without_tls", caller=str(client_address[0]), reason=str(error))


def _parse_number(query: dict[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not text.isdecimal():
        raise BadStatusRequest(f'{name} "{text}" is not a number')
    return int(text)


def _parse_key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise BadStatusRequest(f"encoding/hex: {error}") from error


def _answer(server: StatusServer, target: str) -> tuple[int, str, str]:
    """Code, body and content type."""
    if server.is_ending:
        return 503, _ENDING, _TEXT
    try:
        page, probed = server.pages.get(target), server.probed.answer(target)
        if probed is not None:
            return *probed, monitoring.PROBE_CONTENT_TYPE
        if page is not None:
            return 200, *page()
        body = server.answer(target)
    except BadStatusRequest as error:
        return 400, str(error), _TEXT
    except BinlakeError as error:
        if server.is_ending:
            return 503, _ENDING, _TEXT
        log.warning("status_not_answered", error=str(error))
        return 503, str(error), _TEXT
    return (404, "404 page not found\n", _TEXT) if body is None else (200, body, "application/json")


def _build_handler(server: StatusServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            code, body, kind = _answer(server, self.path)
            if code == 503:
                self.close_connection = True
            self._send(code, body, kind)

        def _send(self, code: int, body: str, kind: str) -> None:
            data = body.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug("status_request", request=format % args)

    return Handler


def add_status_port(parser: argparse.ArgumentParser) -> None:
    """Declare `--status-addr`, and `--status-ssl-ca`, `--status-ssl-cert`, `--status-ssl-key`."""
    parser.add_argument("--status-addr", default="127.0.0.1:10080", help="HOST:PORT of the status port it serves")
    for name, text in (
        ("cert", "certificate of the status port, PEM: it then has TLS"),
        ("key", "key of that certificate"),
        ("ca", "CA that signs callers; if set, callers must show a certificate"),
    ):
        parser.add_argument(f"--status-ssl-{name}", default="", metavar="FILE", help=text)


def build_status_tls(args: argparse.Namespace) -> Tls | None:
    """TLS of the status port; None without files."""
    return Tls.of(args.status_ssl_ca, args.status_ssl_cert, args.status_ssl_key)


@dataclass(frozen=True, slots=True)
class PrewrittenTransaction:
    """One transaction, from its P. `commit_ts` 0 = rolled back; `orphan`: nobody wrote its C or R to a pump."""

    start_ts: int
    key: bytes
    commit_ts: int
    orphan: bool


def format_go_json(value: object, *, indent: bool = True) -> str:
    """JSON as Go prints it: one space of indent, `<`, `>`, `&`, U+2028 and U+2029 escaped."""
    layout: Json = {"indent": 1} if indent else {"separators": (",", ":")}
    text = json.dumps(value, ensure_ascii=False, **layout)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class StatusJobs:
    """DDL jobs by id; thread-safe. Memory: the texts of the jobs."""

    def __init__(self, jobs: Iterable[Json] = ()) -> None:
        self._jobs = sorted(jobs, key=_get_job_id)

    def add(self, job: Json) -> None:
        """Add a finished job."""
        self._jobs = sorted([*self._jobs, job], key=_get_job_id)

    def list_finished_jobs(self, now: int, start_job_id: int = 0, limit: int = 0) -> list[Json]:
        """As `/ddl/history`: the newest `limit` first, from `start_job_id` downwards; 0, 0 = all, oldest first."""
        jobs = [job for job in self._jobs if int(job["binlog"]["FinishedTS"]) < now]
        if not limit and not start_job_id:
            return jobs
        below = [job for job in reversed(jobs) if not start_job_id or job["id"] <= start_job_id]
        return below[: limit or MAX_HISTORY]


def _get_job_id(job: Json) -> int:
    return int(job["id"])


def build_mvcc_body(key: bytes, info: Json, region: int = 1) -> Json:
    """The body of `/mvcc/hex/KEY`; `info`: lock, writes and values, as far as they exist."""
    return {"key": key.hex().upper(), "region_id": region, "value": {"info": info}}


def write_record(transaction: PrewrittenTransaction) -> Json:
    """The write record of a finished transaction."""
    if transaction.commit_ts:
        return {"start_ts": transaction.start_ts, "commit_ts": transaction.commit_ts}
    return {"type": _ROLLBACK, "start_ts": transaction.start_ts, "commit_ts": transaction.start_ts}


def lock_record(start_ts: int, key: bytes) -> Json:
    """The lock of a running transaction."""
    return {"start_ts": start_ts, "primary": base64.b64encode(key).decode()}


def build_status(meta: Json) -> Json:
    """The body of `/status`."""
    return {"connections": 0, "version": meta.get("version", ""), "git_hash": _parse_git_hash(meta)}


def build_info_all(meta: Json, host: str, port: int, started: int) -> Json:
    """The body of `/info/all`: one server, binlog on; `started` in Unix seconds."""
    server = str(uuid.uuid5(uuid.NAMESPACE_URL, f"binlake-capture-{meta.get('case', '')}-{meta.get('seed', '')}"))
    own = {
        "version": meta.get("version", ""),
        "git_hash": _parse_git_hash(meta),
        "ddl_id": server,
        "ip": host,
        "listening_port": 0,
        "status_port": port,
        "lease": "45s",
        "binlog_status": "On",
        "start_timestamp": started,
        "labels": {},
        "server_id": 0,
    }
    return {
        "servers_num": 1,
        "owner_id": server,
        "is_all_server_version_consistent": True,
        "all_servers_info": {server: own},
    }


def _parse_git_hash(meta: Json) -> str:
    lines = str(meta.get("tidb_version", "")).splitlines()
    commit = next((line.partition(": ")[2] for line in lines if line.startswith("Git Commit Hash")), "None")
    return commit[:12]
