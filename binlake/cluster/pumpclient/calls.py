"""Sends the requests of a queue to one pump: all waiting requests in one call that only Binlake has (WriteBinlogs).

For both sides a call costs more than a binlog. An original pump does not know this call, and gets requests one by one.
"""

from __future__ import annotations

import queue
from collections import deque
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from binlake.cluster.pumpclient.outcomes import (
    Done,
    Refusal,
    build_refusal_from_error,
    build_refusal_from_status,
    read_any_outcome,
)
from binlake.rpc import Channel, PendingCall, RpcError, Status
from binlake.wire.admin_pb2 import WriteBinlogsReq, WriteBinlogsResp
from binlake.wire.pump_pb2 import WriteBinlogReq

log = structlog.get_logger()

METHOD = "/binlog.Pump/WriteBinlog"
_MANY = "/binlake.wire.PumpAdmin/WriteBinlogs"
_AT_ONCE = 64  # unanswered calls, if each has one binlog
_CALLS_OF_MANY = 8
_MOST, _MOST_BYTES = 500, 1 << 20  # of a call
_ONE_BY_ONE = frozenset({Status.UNIMPLEMENTED, Status.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, slots=True)
class Sent:
    """A request to send; `done` receives its outcome."""

    request: WriteBinlogReq
    timeout_s: float
    done: Done


class Sender:
    """Sends the requests of `sent` until None, and reports each outcome; `run` needs its own thread."""

    def __init__(self, channel: Channel, sent: queue.SimpleQueue[Sent | None]) -> None:
        self._channel = channel
        self._sent = sent
        self._held: Sent | None = None
        self._open = True
        self._one_by_one = False
        self._waiting: deque[tuple[PendingCall, list[Sent]]] = deque()

    def run(self) -> None:
        """Send until the queue ends and all calls are answered."""
        while self._open or self._held or self._waiting:
            while self._has_more():
                self._begin(self._take())
            if self._waiting:
                self._settle(*self._waiting.popleft())

    def _has_more(self) -> bool:
        """Whether to send now, before waiting for an answer."""
        if self._held is not None or not self._waiting:
            return self._held is not None or self._open
        at_once = _AT_ONCE if self._one_by_one else _CALLS_OF_MANY
        return self._open and len(self._waiting) < at_once and not self._sent.empty()

    def _take(self) -> list[Sent]:
        """The next request of the queue, and as many waiting ones as fit into a call."""
        first = self._held or self._sent.get()
        self._held = None
        if first is None:
            self._open = False
            return []
        batch, size = [first], len(first.request.payload)
        while not self._one_by_one and len(batch) < _MOST and not self._sent.empty():
            sent = self._sent.get_nowait()
            if sent is None:
                self._open = False
                break
            size += len(sent.request.payload)
            if size > _MOST_BYTES:
                self._held = sent
                break
            batch.append(sent)
        return batch

    def _begin(self, batch: list[Sent]) -> None:
        if len(batch) < 2 or self._one_by_one:
            for sent in batch:
                self._start(METHOD, sent.request.SerializeToString(), [sent])
            return
        payloads = [sent.request.payload for sent in batch]
        message = WriteBinlogsReq(cluster_id=batch[0].request.clusterID, payloads=payloads).SerializeToString()
        self._start(_MANY, message, batch)

    def _start(self, method: str, message: bytes, batch: list[Sent]) -> None:
        try:
            call = self._channel.start(method, message, max(sent.timeout_s for sent in batch))
        except RpcError as error:
            _refuse(batch, build_refusal_from_status(error))
        except Exception as error:
            # Only this call fails: the thread must go on for later ones.
            log.exception("pump_send_failed")
            _refuse(batch, build_refusal_from_error(error))
        else:
            self._waiting.append((call, batch))

    def _settle(self, call: PendingCall, batch: list[Sent]) -> None:
        if len(batch) == 1:
            batch[0].done(read_any_outcome(call.await_result))
            return
        try:
            refusals = WriteBinlogsResp.FromString(call.await_result()).refusals
        except RpcError as error:
            if error.status in _ONE_BY_ONE:
                self._one_by_one = self._one_by_one or error.status is Status.UNIMPLEMENTED
                for sent in batch:
                    self._begin([sent])
            else:
                _refuse(batch, build_refusal_from_status(error))
        except DecodeError as error:
            _refuse(batch, Refusal(f"damaged answer: {error}"))
        except Exception as error:
            log.exception("pump_send_failed")
            _refuse(batch, build_refusal_from_error(error))
        else:
            texts = {refusal.number: refusal.text for refusal in refusals}
            for number, sent in enumerate(batch):
                sent.done(Refusal(texts[number]) if number in texts else None)


def _refuse(batch: list[Sent], refusal: Refusal) -> None:
    for sent in batch:
        sent.done(refusal)
