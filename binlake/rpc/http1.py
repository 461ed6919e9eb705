"""HTTP/1.1 on the gRPC port, one request at a time on a connection: for people, browsers and Prometheus."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

import h11

from binlake.rpc.host import Host, has_certificate, read_peer_address
from binlake.rpc.request import HttpResponse, build_http_request

_IDLE_S = 120.0
_FREE_PIECES = 64
_SMALL_PIECE = 256  # bytes: a chunk takes 30 us of the loop, however small it is


def _look_up_reason(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus.__members__.values() else ""


class Http1Connection(asyncio.Protocol):
    """An asyncio protocol; belongs to the server's loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=host.limits.header_bytes)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._answering = False
        self._draining = False
        self._quiet_since = self.heard_at = host.clock()
        self.address = ""
        self.waiting_calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = read_peer_address(transport)
        self._host.add_connection(self)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self.heard_at = self._host.clock()
        self._parser.receive_data(data)
        self._process()

    def _process(self) -> None:
        try:
            self._take()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def eof_received(self) -> bool:
        """The peer has finished sending; it may still wait for an answer."""
        return self._answering

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed."""
        del exc
        self._host.assembly.small.release(self)
        self._host.remove_connection(self)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return not self._answering

    def drain(self) -> None:
        """Close after the running request."""
        self._draining = True
        if not self._answering:
            self.close()

    def end_calls(self) -> None:
        """Close now."""
        self.close()

    def close(self) -> None:
        """Close after all output is written."""
        if self._transport is not None:
            self._transport.close()

    def evict(self) -> None:
        """Close, since others need its slot."""
        self.close()

    def release_memory(self) -> None:
        """Refuse the unfinished request and free its memory, for which others wait."""
        self._body = []
        self._refuse(503, "the request comes too slowly while others wait for room")

    def tick(self, now: float) -> None:
        """Close the connection if it has been silent for too long."""
        limit = self._host.limits.header_wait_s if self._request or self._body else _IDLE_S
        if not self._answering and now - self._quiet_since > limit:
            self.close()

    def _take(self) -> None:
        while not self._answering:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                if self._parser.they_are_waiting_for_100_continue:
                    self._write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])))
                return
            if isinstance(event, h11.Request):
                self._request, self._body, self._body_bytes = event, [], 0
                self._quiet_since = self._host.clock()
                if sum(len(name) + len(value) for name, value in event.headers) > self._host.limits.header_bytes:
                    raise h11.RemoteProtocolError("the headers are too large", 431)
            elif isinstance(event, h11.Data):
                self._add(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._ask()
            else:
                self.close()
                return

    def _add(self, data: bytes) -> None:
        self._body.append(data)
        self._body_bytes += len(data)
        if len(self._body) > _FREE_PIECES + self._body_bytes // _SMALL_PIECE:
            raise h11.RemoteProtocolError("the body comes in pieces that are too small", 413)
        if self._body_bytes > self._host.limits.http_body_bytes:
            raise h11.RemoteProtocolError("the body is too large", 413)
        if not self._host.assembly.small.grow(self, self._body_bytes):
            raise h11.RemoteProtocolError("too many unfinished requests", 503)

    def _ask(self) -> None:
        head = self._request
        assert head is not None
        assert self._transport is not None
        self._answering = True
        self._transport.pause_reading()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        target, method = head.target.decode("latin-1"), head.method.decode("latin-1")
        body = b"".join(self._body)
        request = build_http_request(method, target, headers, body, certified=has_certificate(self._transport))
        self._host.answer_http(request, self._answer, self.address)

    def _answer(self, answer: HttpResponse) -> None:
        transport, request = self._transport, self._request
        assert transport is not None
        assert request is not None
        if transport.is_closing():
            return
        self._send(answer, request.method == b"HEAD")
        self._answering, self._request, self._body = False, None, []
        self._host.assembly.small.release(self)
        self._quiet_since = self._host.clock()
        if self._draining or self._parser.our_state is not h11.DONE or self._parser.their_state is not h11.DONE:
            self.close()
            return
        self._parser.start_next_cycle()
        transport.resume_reading()
        self._process()  # the next request may have arrived already

    def _send(self, answer: HttpResponse, head_only: bool) -> None:
        headers = [("content-type", answer.content_type), ("content-length", str(len(answer.body)))]
        if self._draining:
            headers.append(("connection", "close"))
        parts = [
            self._parser.send(
                h11.Response(status_code=answer.status, headers=headers, reason=_look_up_reason(answer.status))
            )
        ]
        if not head_only:
            parts.append(self._parser.send(h11.Data(data=answer.body)))
        parts.append(self._parser.send(h11.EndOfMessage()))
        self._write(b"".join(part for part in parts if part))

    def _refuse(self, status: int, text: str) -> None:
        # A peer without HTTP/1.1 would not understand an answer.
        if (self._request or status != 400) and self._parser.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = f"{text}\n".encode()
            headers = [("content-type", "text/plain"), ("content-length", str(len(body))), ("connection", "close")]
            answer = self._parser.send(h11.Response(status_code=status, headers=headers))
            self._write((answer or b"") + body)
        self.close()

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
