"""One connection of the replication protocol: registers as a replica, requests the log, returns its events.

The dump is read in blocks: pymysql only connects and authenticates, since reading packet by packet with it takes
several times as long. A server that sends no heartbeat in time counts as unreachable, and so does one that ends a dump
which has no end.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass
from uuid import UUID, uuid5

import pymysql
from pymysql.constants import COMMAND

from binlake.errors import BinlakeError, SourceUnavailable
from binlake.mysqlbinlog.events.gtid import MySqlGtidSet, encode_mysql_set
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.logerrors import build_dump_error
from binlake.pump_service.feeder.server import Link, ask

_DUMP_GTID = 0x1E
_REGISTER = 0x15
_NON_BLOCKING = 1
_THROUGH_GTIDS = 4
_FIRST_EVENT = 4
_MARIADB_CAPABILITY = 4
"""The reader understands MariaDB's GTID events."""
_BLOCK = 1 << 18
_LONGEST = 0xFFFFFF
_HEADER = 4
_ERROR, _END = 0xFF, 0xFE
_NAMESPACE = UUID("6d2b3a60-3c9d-4b5e-9b59-62696e6c616b")


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """Where a dump begins: after the GTID set `gtids` (None: at `offset` of `file`)."""

    file: str
    offset: int
    gtids: MySqlGtidSet | str | None = None


class Dump:
    """Events of a server's log; with `server_id` 0 it reads to the log's current end and does not register."""

    def __init__(
        self, link: Link, flavor: Flavor, server_id: int, *, heartbeat_s: float, read_timeout_s: float
    ) -> None:
        self._link = link
        self._flavor = flavor
        self._server_id = server_id
        self._heartbeat_s = heartbeat_s
        self._read_timeout_s = read_timeout_s
        self._buffer = bytearray()
        self._partial = bytearray()
        self._sock: socket.socket = link._sock  # type: ignore[attr-defined]
        self._sock.settimeout(read_timeout_s)  # also in the middle of a TLS record, which `poll` does not see
        self._wake, self._waker = socket.socketpair()
        self._last_heard = time.monotonic()
        self._error: BinlakeError | None = None
        self.is_at_end = False

    def begin(self, request: DumpRequest) -> None:
        """Request the log. Raises pymysql's errors; a refusal by the server comes with the first events."""
        self._set_variables()
        if self._server_id:
            self._register()
        flags = 0 if self._server_id else _NON_BLOCKING
        if isinstance(request.gtids, str):
            ask(self._link, "SET @slave_connect_state = %s", (request.gtids,))
            ask(self._link, "SET @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0")
        if isinstance(request.gtids, MySqlGtidSet):
            self._send(_DUMP_GTID, _dump_by_gtids(self._server_id, flags, request.gtids))
        elif request.offset >= 1 << 32 and self._flavor is Flavor.MYSQL:
            self._send(_DUMP_GTID, _dump_by_long_offset(self._server_id, flags, request))
        else:
            body = struct.pack("<IHI", request.offset & 0xFFFFFFFF, flags, self._server_id) + request.file.encode()
            self._send(COMMAND.COM_BINLOG_DUMP, body)
        self._last_heard = time.monotonic()

    def receive_events(self, wait_s: float) -> list[bytes]:
        """The events that have arrived: at least one, unless `wait_s` passed, `wake` was called or the log ended.

        Raises SourceUnavailable, SourceRefused, LostRange.
        """
        deadline = time.monotonic() + wait_s
        while not self.is_at_end:
            if self._error is not None:
                raise self._error
            events = self._split_packets()
            if events or self.is_at_end:
                return events
            if self._error is not None:
                continue
            if not self._receive(deadline):
                break
        return []

    def wake(self) -> None:
        """Make `events` return now; from any thread."""
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def close(self) -> None:
        """End the connection."""
        # No COM_QUIT: the server is still sending the dump.
        self._link._force_close()  # type: ignore[attr-defined]
        self._wake.close()
        self._waker.close()

    def _set_variables(self) -> None:
        nanoseconds = int(self._heartbeat_s * 1e9)
        ask(self._link, f"SET @master_heartbeat_period = {nanoseconds}, @source_heartbeat_period = {nanoseconds}")
        ask(self._link, "SET @master_binlog_checksum = @@GLOBAL.binlog_checksum")
        if self._flavor is Flavor.MARIADB:
            ask(self._link, f"SET @mariadb_slave_capability = {_MARIADB_CAPABILITY}")
            return
        ask(self._link, "SET @source_binlog_checksum = @@GLOBAL.binlog_checksum")
        # A server disconnects the older of two replicas with the same UUID: one that a network failure left behind.
        identity = str(uuid5(_NAMESPACE, str(self._server_id)))
        ask(self._link, "SET @slave_uuid = %s, @replica_uuid = %s", (identity, identity))

    def _register(self) -> None:
        host = socket.gethostname().encode()[:60]
        body = struct.pack("<IB", self._server_id, len(host)) + host + struct.pack("<BBHII", 0, 0, 0, 0, 0)
        self._send(_REGISTER, body)
        self._link._read_ok_packet()  # type: ignore[attr-defined]

    def _send(self, command: int, body: bytes) -> None:
        self._link._execute_command(command, body)  # type: ignore[attr-defined]

    def _receive(self, deadline: float) -> bool:
        """Read a block; False on timeout or after `wake`."""
        silent_at = self._last_heard + self._read_timeout_s
        if not self._has_pending() and not self._is_readable(min(deadline, silent_at)):
            if time.monotonic() < silent_at:
                return False
            raise SourceUnavailable(f"the server sent nothing for {self._read_timeout_s:g} s, not even a heartbeat")
        try:
            block = self._sock.recv(_BLOCK)
        except OSError as error:
            raise SourceUnavailable(f"the connection to the server broke: {error}") from None
        if not block:
            raise SourceUnavailable("the server ended the connection")
        self._buffer += block
        self._last_heard = time.monotonic()
        return True

    def _has_pending(self) -> bool:
        pending = getattr(self._sock, "pending", None)  # TLS: already decrypted, so no longer in the socket
        return bool(pending and pending())

    def _is_readable(self, until: float) -> bool:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        ready = {number for number, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
        if self._wake.fileno() in ready:
            self._wake.recv(1 << 10)
            return False
        return self._sock.fileno() in ready

    def _split_packets(self) -> list[bytes]:
        """The events of the complete packets in the buffer."""
        events: list[bytes] = []
        at, size = 0, len(self._buffer)
        with memoryview(self._buffer) as data:
            while at + _HEADER <= size:
                start = at + _HEADER
                length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
                if start + length > size:
                    break
                at = start + length
                if not self._partial and data[start] != 0:
                    self._handle_end_packet(bytes(data[start:at]))
                    break
                if length == _LONGEST or self._partial:
                    self._partial += data[start:at]
                    if length < _LONGEST:
                        events.append(bytes(self._partial[1:]))
                        self._partial.clear()
                else:
                    events.append(bytes(data[start + 1 : at]))
        del self._buffer[:at]
        return events

    def _handle_end_packet(self, packet: bytes) -> None:
        if packet[0] == _END:
            if self._server_id:
                # A dump that waits for new events has no end: a server that shuts down, or whose session is killed,
                # ends it so. The events before it are returned first.
                self._error = SourceUnavailable("the server ended the log: it is shutting down, or ended this session")
            else:
                self.is_at_end = True
            return
        try:
            pymysql.err.raise_mysql_exception(packet)
        except pymysql.err.Error as error:
            # The events before it are returned first.
            self._error = build_dump_error(error)


def _dump_by_gtids(server_id: int, flags: int, done: MySqlGtidSet) -> bytes:
    data = encode_mysql_set(done)
    head = struct.pack("<HII", flags | _THROUGH_GTIDS, server_id, 0) + struct.pack("<Q", _FIRST_EVENT)
    return head + struct.pack("<I", len(data)) + data


def _dump_by_long_offset(server_id: int, flags: int, request: DumpRequest) -> bytes:
    name = request.file.encode()
    head = struct.pack("<HII", flags, server_id, len(name)) + name
    return head + struct.pack("<QI", request.offset, 0)
