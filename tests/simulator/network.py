"""The network: messages that take time, are lost, or come late; connections and the calls on them.

A connection keeps its order, like TCP; a message in flight when a link is cut may arrive when the link is healed. A
process that dies resets its connections; a machine that loses power is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from binlake.rpc import RpcError, Status

if TYPE_CHECKING:
    from simulator.ends import Server
from simulator.scheduler import Scheduler
from simulator.vthreads import Threading

_FAST_S, _SLOW_S, _SLOW_SHARE = 0.002, 0.3, 0.01
_HELD_SHARE = 0.5  # share of the messages in flight on a cut link that arrive when it is healed
SILENCE_S = 20.0  # seconds until an unanswered connection attempt fails


class Network:
    """Which server listens where, and which links are cut: (from, to) by machine name."""

    def __init__(self, scheduler: Scheduler, threading: Threading) -> None:
        self.scheduler = scheduler
        self.threading = threading
        self.cut: set[tuple[str, str]] = set()
        self.slow_share = _SLOW_SHARE
        self.observe: Callable[[Server, str, bytes, Call], None] = lambda *_: None
        self._servers: dict[str, list[Server]] = {}
        self._held: list[Callable[[], None]] = []

    def listen(self, address: str, server: Server) -> None:
        """Serve an address; of two servers at one address, each caller reaches one."""
        self._servers.setdefault(address, []).append(server)

    def leave(self, server: Server) -> None:
        """Stop serving."""
        for servers in self._servers.values():
            if server in servers:
                servers.remove(server)

    def server_at(self, address: str, machine: str) -> Server | None:
        """The server that answers a caller on `machine`: one on the same machine is preferred."""
        alive = [one for one in self._servers.get(address, []) if not one.process.dead and one.started]
        here = [one for one in alive if one.machine == machine]
        return (here or alive or [None])[hash_of(machine) % len(here or alive or [None])]

    def carry(
        self, source: str, target: str, delay_s: float, deliver: Callable[[], None], lose: Callable[[], None]
    ) -> None:
        """Deliver something to another machine, hold it until the link is healed, or lose it."""

        def arrive() -> None:
            if (source, target) not in self.cut:
                deliver()
            elif self.scheduler.random.random() < _HELD_SHARE:
                self._held.append(deliver)
            else:
                lose()

        self.scheduler.after(delay_s, arrive)

    def delay(self) -> float:
        """Seconds for one direction."""
        random = self.scheduler.random
        slow = random.random() < self.slow_share
        return random.random() * (_SLOW_S if slow else _FAST_S)

    def heal(self) -> None:
        """Heal all links and deliver the held messages."""
        self.cut.clear()
        held, self._held = self._held, []
        for deliver in held:
            self.scheduler.after(0.0, deliver)


def hash_of(text: str) -> int:
    """A hash that is the same in every run."""
    return sum((n + 1) * ord(char) for n, char in enumerate(text))


class Way:
    """One direction of a connection: it keeps the order, and after the first loss it is silent."""

    def __init__(self, network: Network, source: str, target: str, broke: Callable[[], None]) -> None:
        self._network = network
        self._ends = (source, target)
        self._broke = broke
        self._last = 0.0
        self.lost = False

    def send(self, deliver: Callable[[], None]) -> None:
        """Send a message."""
        network = self._network
        now = network.scheduler.now
        self._last = max(now + network.delay(), self._last)
        network.carry(*self._ends, self._last - now, lambda: None if self.lost else deliver(), self._lose)

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._network.scheduler.after(SILENCE_S, self._broke)


class Connection:
    """A connection: one `Way` in each direction."""

    def __init__(self, network: Network, here: str, server: Server) -> None:
        self.network = network
        self.here = here
        self.server = server
        self.calls: dict[Call, None] = {}
        self._there = Way(network, here, server.machine, self.end)
        self._back = Way(network, server.machine, here, self.end)
        self.send, self.answer = self._there.send, self._back.send
        self._ended = False
        server.connections.append(self)

    @property
    def usable(self) -> bool:
        """Whether a new call may use it, as far as the caller knows."""
        return not self._ended and self.server.started and not self.server.process.dead

    def reset(self) -> None:
        """The other side has ended and reports it."""
        self.answer(self.end)

    def end(self) -> None:
        """Both sides know that the connection has ended."""
        self._ended = True
        for call in list(self.calls):
            call.lost()
            call.left()


NO_HEADERS: Mapping[str, str] = {}


@dataclass
class _Request:
    headers: Mapping[str, str]
    gzip: bool = False


class Call:
    """One call, for the server's handlers and for the caller."""

    def __init__(self, connection: Connection, stream: bool, headers: Mapping[str, str]) -> None:
        self.connection = connection
        self.stream = stream
        self.request = _Request(headers)
        self.on_end: Callable[[], None] | None = None
        self.on_sent: Callable[[int], None] | None = None
        self.on_reply: Callable[[], None] | None = None
        self.ended = False
        self.gone = False
        self.changed = connection.network.threading.Condition()
        self.parts: list[bytes] = []
        self.error: RpcError | None = None
        self.done = False
        connection.calls[self] = None

    # the server's side

    def reply(self, message: bytes) -> None:
        """Send the answer."""
        if self.on_reply is not None and not self.ended:
            self.on_reply()
        self._end(lambda: self._take([message], None))

    def fail(self, status: Status, text: str) -> None:
        """End with an error."""
        self._end(lambda: self._take([], RpcError(status, text)))

    def finish_ok(self) -> None:
        """End a stream."""
        self._end(lambda: self._take([], None))

    def send(self, data: bytes) -> None:
        """Send messages of a stream."""
        if not self.ended:
            self.connection.answer(lambda: self._arrived(data))

    @staticmethod
    def encode_message(message: bytes) -> bytes:
        """A message of a stream in the form in which it is sent."""
        return b"\0" + len(message).to_bytes(4, "big") + message

    def _end(self, deliver: Callable[[], None]) -> None:
        if not self.ended:
            self.ended = True
            self.connection.server.active.pop(self, None)
            if not self.gone:
                self.connection.answer(deliver)
            if self.on_end is not None:
                self.on_end()

    # the caller's side

    def _arrived(self, data: bytes) -> None:
        self.parts.append(data)
        self.changed.notify_all()

    def _take(self, parts: list[bytes], error: RpcError | None) -> None:
        if not self.done:
            self.parts += parts
            self.error, self.done = error, True
            self.connection.calls.pop(self, None)
            self.changed.notify_all()

    def lost(self) -> None:
        """The connection broke."""
        self._take([], RpcError(Status.UNAVAILABLE, "connection reset"))

    def cancel(self) -> None:
        """The caller gives up; the server is notified."""
        # If another thread closes the channel, a thread that waits for the answer must be woken.
        self._take([], RpcError(Status.CANCELLED, "the channel was closed"))
        self.connection.send(self.left)

    def left(self) -> None:
        """The server learns that the caller no longer listens."""
        self.gone = True
        if not self.ended and self.on_end is not None:
            tell, self.on_end = self.on_end, None
            self.connection.server.run_on_loop(tell)
