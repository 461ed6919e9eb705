"""A TiDB's status port on loopback: `/status`, `/info/all`, `/ddl/history`, `/mvcc/hex/KEY`, as of a clock.

Its answers come from what a feeder or a workload wrote, or from a recorded capture.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import structlog

from binlake.errors import BinlakeError, ConfigError
from binlake.pump_service import probes
from binlake.pump_service.probes import Probes
from binlake.pump_service.statusport import answers
from binlake.rpc import Tls

log = structlog.get_logger()

_HANDSHAKE_S = 10.0
_TEXT = "text/plain; charset=utf-8"
_ENDING = "the process ends: ask the next one\n"


class BadStatusRequest(Exception):
    """The caller asked for something that a status port refuses with 400."""


class Transactions(Protocol):
    """Gives the outcomes of transactions."""

    def answer(self, key: bytes, now: int) -> answers.Json:
        """The body of `/mvcc/hex/KEY` as of `now`."""


class Jobs(Protocol):
    """Gives the finished DDL jobs."""

    def list_finished_jobs(self, now: int, start_job_id: int = 0, limit: int = 0) -> list[answers.Json]:
        """As `/ddl/history`: the newest `limit` first, from `start_job_id` downwards; 0, 0 = all, oldest first."""


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
        meta: answers.Json,
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
        self.probed = probed or Probes(probes.find_no_reason, probes.find_no_reason)
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
            return answers.format_go_json(answers.build_status(self._meta), indent=False)
        if parts.path == "/info/all":
            host, port = self._server.server_address[:2]
            return answers.format_go_json(answers.build_info_all(self._meta, str(host), int(port), self._started))
        if parts.path == "/ddl/history":
            return self._answer_jobs(query)
        if parts.path.startswith("/mvcc/hex/"):
            return answers.format_go_json(
                self._transactions.answer(_parse_key(parts.path.removeprefix("/mvcc/hex/")), self._now())
            )
        return None

    def _answer_jobs(self, query: dict[str, str]) -> str:
        start, limit = _parse_number(query, "start_job_id"), _parse_number(query, "limit")
        if limit > answers.MAX_HISTORY:
            raise BadStatusRequest(f"ddl history limit must be between 1 and {answers.MAX_HISTORY}")
        return answers.format_go_json(self._history.list_finished_jobs(self._now(), start, limit))


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
            return *probed, probes.CONTENT_TYPE
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
