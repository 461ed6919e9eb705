"""A page handler behind a plain HTTP/1.1 server on a free port of loopback, for tests that need a real address."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

from binlake.rpc.http import HttpHandler, HttpRequest


class Front:
    """`address` is HOST:PORT; `handler` is set before the first request."""

    def __init__(self) -> None:
        self.handler: HttpHandler | None = None
        front = self

        class _Requests(BaseHTTPRequestHandler):
            def answer(self) -> None:
                url = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = HttpRequest(self.command, unquote(url.path), dict(parse_qsl(url.query)), headers, body)
                assert front.handler is not None
                found = front.handler(request)
                self.send_response(found.status)
                self.send_header("content-type", found.content_type)
                self.send_header("content-length", str(len(found.body)))
                self.end_headers()
                self.wfile.write(found.body)

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Requests)
        self.address = f"127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def http_front() -> Iterator[Front]:
    """A running front."""
    front = Front()
    thread = threading.Thread(target=front.server.serve_forever, daemon=True)
    thread.start()
    yield front
    front.server.shutdown()
    front.server.server_close()
    thread.join()
