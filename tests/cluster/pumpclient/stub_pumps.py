"""Stub pumps that accept all writes or fail as configured, and an in-memory registry that reports changes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import grpc

from binlake.errors import SourceUnavailable
from binlake.wire import pump_pb2, pump_pb2_grpc
from binlake.wire.binlog_pb2 import Binlog


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class StubPump(pump_pb2_grpc.PumpServicer):
    """Accepts all writes, or fails as configured."""

    def __init__(self) -> None:
        self.got: list[Binlog] = []
        self._fails = 0
        self._lock = threading.Lock()
        self.code = grpc.StatusCode.UNKNOWN
        self.text = "pump is paused"
        self.errmsg = ""
        server = grpc.server(ThreadPoolExecutor(4))
        pump_pb2_grpc.add_PumpServicer_to_server(self, server)
        self.host = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        self.server = server
        server.start()

    @property
    def fails(self) -> int:
        """The number of next writes that fail."""
        return self._fails

    @fails.setter
    def fails(self, count: int) -> None:
        with self._lock:
            self._fails = count

    def _fail(self) -> bool:
        # A call that counts down must not overwrite a number that the test sets at the same time.
        with self._lock:
            failing, self._fails = self._fails > 0, max(0, self._fails - 1)
        return failing

    def WriteBinlog(self, request: pump_pb2.WriteBinlogReq, context: grpc.ServicerContext) -> pump_pb2.WriteBinlogResp:
        if self._fail():
            context.abort(self.code, self.text)
        if not self.errmsg:
            self.got.append(Binlog.FromString(request.payload))
        return pump_pb2.WriteBinlogResp(errmsg=self.errmsg)

    def types(self) -> list[int]:
        return [binlog.tp for binlog in self.got]


@dataclass(frozen=True)
class Node:
    node_id: str
    host: str
    state: str = "online"
    score: int = 0
    label: Mapping[str, str] | None = None


class Watched:
    """One listing, and the changes after it."""

    def __init__(self, pumps: list[Node]) -> None:
        self.pumps = pumps
        self.events: queue.SimpleQueue[tuple[str, Node | None] | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[tuple[str, Node | None]]:
        yield from iter(self.events.get, None)
        raise SourceUnavailable("the watch ended")

    def close(self) -> None:
        self.events.put(None)


@dataclass
class Listing:
    """An in-memory registry."""

    nodes: dict[str, Node] = field(default_factory=dict)
    down: bool = False
    watches: list[Watched] = field(default_factory=list)

    def watch_pumps(self) -> Watched:
        if self.down:
            raise SourceUnavailable("no registry")
        self.watches.append(Watched(list(self.nodes.values())))
        return self.watches[-1]

    def put(self, node: Node) -> None:
        self.nodes[node.node_id] = node
        self._report(node.node_id, node)

    def change(self, node_id: str, **fields: object) -> None:
        self.put(replace(self.nodes[node_id], **fields))  # type: ignore[arg-type]

    def delete(self, node_id: str) -> None:
        del self.nodes[node_id]
        self._report(node_id, None)

    def _report(self, node_id: str, node: Node | None) -> None:
        for watch in self.watches:
            watch.events.put((node_id, node))
