"""The server side of one HTTP/2 connection: turns requests into calls and calls into answers, and limits clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from binlake.rpc import frames, headers, messages, request
from binlake.rpc.call import Call, add_piece, check_incomplete, read_message, reserve_unpacked, take_body
from binlake.rpc.flow import Stream
from binlake.rpc.frames import Code, ConnectionFault, Setting, StreamFault
from binlake.rpc.headers import Field
from binlake.rpc.host import Host, has_certificate, read_peer_address
from binlake.rpc.limits import EventPace, SparingLog
from binlake.rpc.messages import RpcError, Status
from binlake.rpc.request import HttpResponse, Malformed, Request
from binlake.rpc.server_output import FOREVER, ServerOutput

log = SparingLog()

_DRAIN_PING = b"drained?"
_MAX_UNPACKED_ON_LOOP = 4 << 10  # bytes: a thread unpacks longer gzip messages, so that the loop continues
_RAPID_RESET_S = 0.25  # a call cancelled later is not a rapid reset: its deadline may have passed


class ServerConnection(ServerOutput, asyncio.Protocol):
    """An asyncio protocol; belongs to the server's loop."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(host, loop)
        self._opened_at = self.heard_at = host.clock()
        self.address = ""
        self.waiting_calls = 0
        self._preface = frames.PREFACE
        self._last_id = 0
        self._working = 0  # unanswered calls, including cancelled ones, whose work still runs
        self._resets = EventPace(host.limits.resets_per_s)
        self._final = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open with our SETTINGS."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = read_peer_address(transport)
        # Half of it: if _measure_room() finds no room, the transport has paused us or a flush will come, so we will
        # continue.
        self._transport.set_write_buffer_limits(high=self.limits.queue_bytes >> 1)
        self._host.add_connection(self)
        self.open([(Setting.MAX_CONCURRENT_STREAMS, self.limits.streams)])
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and send all answers in one write."""
        if self.closed:
            return
        self.heard_at = self._host.clock()
        self._flushing = True  # one flush at the end instead of one per call
        try:
            if self._preface:
                data = self._take_preface(data)
            self.feed(data)
        except ConnectionFault as fault:
            self.report_fault(fault)
        self._flush()
        if self.closed:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call."""
        del exc
        self.closed = True
        for stream in list(self.streams.values()):
            self.drop(stream)
            cast(Call, stream).abandon()
        self._host.remove_connection(self)

    # life

    def drain(self) -> None:
        """Ask the peer to open no more streams, and end the connection after the last one (RFC 9113 6.8)."""
        if not self._draining and not self.closed:
            self._draining = True
            self.write(frames.encode_goaway(frames.U31, Code.NO_ERROR))
            self.write(frames.encode_frame(frames.PING, 0, 0, _DRAIN_PING))

    def end_calls(self) -> None:
        """End all calls as UNAVAILABLE after the grace period, then the connection."""
        for stream in list(self.streams.values()):
            cast(Call, stream).fail(Status.UNAVAILABLE, "the server is stopping")
        self._flush()
        self.close()

    def tick(self, now: float) -> None:
        """Check for timeouts."""
        if now - self._stalled_since > self.limits.stall_s:
            self.abort()
        elif not self._last_id and now - self._opened_at > self.limits.header_wait_s:
            self.report_fault(ConnectionFault(Code.NO_ERROR, "no request came"))
            self._flush()
            self.close()
        self.waiting_calls = 0
        for stream in list(self.streams.values()):
            self._check_timeouts(cast(Call, stream), now)

    def _check_timeouts(self, call: Call, now: float) -> None:
        limits = self.limits
        if not call.remote_closed or call.answered:
            self.waiting_calls += 1
        if now > call.deadline:
            call.deadline = FOREVER
            call.expire()
        elif not call.remote_closed and not self._paused and now - call.heard_at > limits.upload_s:
            if call.request.grpc:
                text = f"the request made no progress for {limits.upload_s:g} s"
                self._refuse(call, RpcError(Status.DEADLINE_EXCEEDED, text))
            else:
                self.reset(call.id, Code.CANCEL)
        elif self.waits(call) and call.stuck_s(now) > limits.stall_s:
            self.reset(call.id, Code.CANCEL)

    def evict(self) -> None:
        """Close the connection, since others need its slot."""
        self.report_fault(ConnectionFault(Code.ENHANCE_YOUR_CALM, "closed to make room for other connections"))
        self._flush()
        self.abort() if self._paused else self.close()

    @property
    def idle(self) -> bool:
        """Whether no stream is open."""
        return not self.streams

    # requests

    def _take_preface(self, data: bytes) -> bytes:
        want = self._preface
        if not data.startswith(want[: len(data)]):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface = want[len(data) :]
        return data[len(want) :]

    def _handle_headers(self, stream_id: int, block: bytes, end: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._handle_trailers(cast(Call, stream), block, end)
            return
        if not stream_id & 1 or stream_id <= self._last_id:
            self._handle_late_headers(stream_id, block)
            return
        self._last_id = stream_id
        try:
            parsed = self.parse_cached(block, request.read)
        except Malformed as error:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, str(error)) from None
        self._open_call(stream_id, parsed, end)

    def _handle_late_headers(self, stream_id: int, block: bytes) -> None:
        if stream_id not in self._ended_streams:
            code = Code.STREAM_CLOSED if stream_id & 1 else Code.PROTOCOL_ERROR
            raise ConnectionFault(code, "HEADERS on a closed stream or one a client cannot open")
        self._decoder.decode(block)
        self._count_control()

    def _open_call(self, stream_id: int, parsed: Request | None, end: bool) -> None:
        if self._final or max(self._working, len(self.streams)) >= self.limits.streams:
            raise StreamFault(stream_id, Code.REFUSED_STREAM, "too many calls, or the server is stopping")
        if parsed is None:
            raise StreamFault(stream_id, Code.ENHANCE_YOUR_CALM, "header list is too large")
        now = self._host.clock()
        call = Call(self, stream_id, parsed, now, now + parsed.timeout_s)
        call.remote_closed = end
        self.streams[stream_id] = call
        self._working += 1
        if parsed.grpc and (parsed.refusal is not None or parsed.path not in self._host.methods):
            refusal = parsed.refusal or RpcError(Status.UNIMPLEMENTED, f"unknown method {parsed.path}")
            self._refuse(call, refusal)
        if end:
            self._complete(call)

    def _refuse(self, call: Call, error: RpcError) -> None:
        """Answer before the request is complete; the rest of it is ignored."""
        call.parts = call.large = None
        call.fail(error.status, error.message)

    def drop_unfinished(self, call: Call) -> None:
        """End an unfinished request, whose memory others need."""
        if call.request.grpc:
            self._refuse(call, RpcError(Status.UNAVAILABLE, "the request comes too slowly while others wait for room"))
        else:
            self.reset(call.id, Code.ENHANCE_YOUR_CALM)

    def _handle_trailers(self, call: Call, block: bytes, end: bool) -> None:
        if call.remote_closed:
            self._decoder.decode(block)  # the header table must stay in step
            raise StreamFault(call.id, Code.STREAM_CLOSED, "HEADERS after the end of the stream")
        try:
            fits = request.check_trailers(self._decoder.decode(block))
        except Malformed as error:
            raise StreamFault(call.id, Code.PROTOCOL_ERROR, str(error)) from None
        if not end or not fits:
            raise StreamFault(call.id, Code.PROTOCOL_ERROR, "trailers without an end, or too large")
        self._complete(call)

    def _handle_data(self, stream: Stream, payload: bytes, end: bool) -> None:
        call = cast(Call, stream)
        call.received += len(payload)
        if not call.answered and payload:
            add_piece(call, payload)
            if not end:
                call.heard_at = self._host.clock()
                self._check(call)
        if end:
            self._complete(call)
        else:
            self.grant(call)

    def _check(self, call: Call) -> None:
        try:
            check_incomplete(call, self.limits, self._host.assembly)
        except RpcError as error:
            self._refuse(call, error)

    def _complete(self, call: Call) -> None:
        call.remote_closed = True
        if call.request.content_length not in (-1, call.received):
            raise StreamFault(call.id, Code.PROTOCOL_ERROR, "content-length does not fit")
        if call.share is not None:
            call.share.release(call)
        if call.answered:
            if call.local_closed:
                self.streams.pop(call.id, None)
            return
        parts = take_body(call)
        call.dispatched = True
        if not call.request.grpc:
            http_request = call.request.to_http(b"".join(parts), certified=has_certificate(self._transport))
            self._host.answer_http(http_request, lambda answer: self._send_http_answer(call, answer), self.address)
            return
        try:
            flag, message = read_message(call, parts, self.limits.message_bytes)
            if flag:
                self._unpack(call, flag, message)
                return
        except RpcError as error:
            call.fail(error.status, error.message)
            return
        self._handle(call, message)

    def _unpack(self, call: Call, flag: int, packed: bytes) -> None:
        gzip = call.request.gzip
        size = reserve_unpacked(call, packed, self.limits.message_bytes, self._host.assembly) if gzip else 0

        def unpack_message() -> Callable[[], None]:
            try:
                message = messages.unpack(flag, packed, gzip=gzip, max_bytes=size)
            except RpcError as error:
                status, text = error.status, error.message
                return lambda: call.fail(status, text)
            return lambda: self._handle_unpacked(call, message)

        if len(packed) > _MAX_UNPACKED_ON_LOOP:
            self._host.run_in_thread(unpack_message)
        else:
            unpack_message()()

    def _handle_unpacked(self, call: Call, message: bytes) -> None:
        if call.share is not None:
            call.share.release(call)  # from now on the handler accounts for it
        self._handle(call, message)

    def _handle(self, call: Call, message: bytes) -> None:
        path = call.request.path
        if type(message) is not bytes and path not in self._host.take_views:
            message = bytes(message)
        try:
            self._host.methods[path](call, message)
        except Exception as error:
            # Only this call fails, not the connection with all other calls.
            log.exception("handler_failed", method=path)
            call.fail(Status.UNKNOWN, f"{type(error).__name__}: {error}")

    def _send_http_answer(self, call: Call, answer: HttpResponse) -> None:
        if not call.answered:
            fields: list[Field] = [
                (b":status", b"%d" % answer.status),
                (b"content-type", answer.content_type.encode("latin-1")),
                (b"content-length", b"%d" % len(answer.body)),
            ]
            call.answered = True
            self.write(frames.encode_headers(call.id, headers.encode(fields), end_stream=False))
            self.send(call, b"" if call.request.method == "HEAD" else answer.body, b"")
        self.note_call_finished(call)

    def note_call_finished(self, call: Call) -> None:
        """Note that no work for this call is running any more."""
        self._working -= 1
        if call.share is not None:
            call.share.release(call)

    def _close_local(self, stream: Stream) -> None:
        super()._close_local(stream)
        if not stream.remote_closed:
            # The rest of the request is not needed (RFC 9113 8.1).
            self.reset(stream.id, Code.NO_ERROR)
        if self._draining:
            self._end_when_idle()

    def _on_stream_ended(self, stream: Stream, code: int, *, by_peer: bool) -> None:
        del code
        call = cast(Call, stream)
        call.abandon()
        young = by_peer and self._host.clock() - call.begun < _RAPID_RESET_S
        if young and self._resets.count_event() and self._resets.is_exceeded(self._host.clock()):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many calls were given up")
        if self._draining:
            self._end_when_idle()

    # end

    def _on_ping_answered(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._draining:
            # All that the peer sent before it saw the first GOAWAY has arrived.
            self._final = True
            self.write(frames.encode_goaway(self._last_id, Code.NO_ERROR))
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        if self._final and self.idle and not self.closed:
            self._flush()
            self.close()

    def _on_peer_leaves(self, last_id: int, code: int, text: str) -> None:
        """The peer opens no more streams, and closes the connection itself."""

    def _get_last_peer_id(self) -> int:
        return self._last_id

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1
