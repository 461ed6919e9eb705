"""The dump of a server's log by the replication protocol: where it may begin, and its events over one connection.

A position from which a server cannot continue is refused with the reason: purged, reset, another server, not yet there.

The feeder registers as a replica. The dump is read in blocks: pymysql only connects and authenticates, since reading
packet by packet with it takes several times as long. A server that sends no heartbeat in time counts as unreachable,
and so does one that ends a dump which has no end.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

import pymysql
from pymysql.constants import COMMAND

from binlake.errors import BinlakeError, SourceRefused, SourceUnavailable
from binlake.mysqlbinlog.events.gtid import MariaDbGtidSet, MySqlGtidSet, encode_mysql_set
from binlake.mysqlbinlog.events.transactions import GtidOrigin
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.pump_service.feeder.server import (
    Link,
    ask,
    build_dump_error,
    build_missing_transactions_error,
    build_purged_error,
    build_reset_error,
    read_log_files,
)

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

SERVER_FACT = "server of "
"""The journal's fact with this and a source's name has the server whose log the source's position belongs to."""


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


@dataclass(frozen=True, slots=True)
class LogStart:
    """`request`: the dump to request; `position`: of the first event; `gtids`: where its GTID set comes from;
    `skip_below`: offset in the first file below which transactions have already been read."""

    request: DumpRequest
    position: BinlogPosition
    gtids: GtidOrigin
    skip_below: int = 0


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server: MySQL's UUID (MariaDB has none: its id), and its id."""

    uuid: str
    server_id: int


def read_identity(link: Link, flavor: Flavor) -> ServerIdentity:
    """Read the identity of the server behind `link`. Raises pymysql's errors."""
    server_id = int(ask(link, "SELECT @@GLOBAL.server_id")[0][0])
    uuid = str(ask(link, "SELECT @@GLOBAL.server_uuid")[0][0]) if flavor is Flavor.MYSQL else str(server_id)
    return ServerIdentity(uuid, server_id)


def find_start(
    link: Link, flavor: Flavor, position: BinlogPosition, identity: ServerIdentity, last_uuid: str
) -> LogStart:
    """Where the dump begins. `last_uuid`: the server that the position was read from, "" = unknown.

    Raises LostRange, SourceRefused, SourceUnavailable, and pymysql's errors.
    """
    if flavor is Flavor.MARIADB:
        return _start_mariadb(link, position, identity, last_uuid)
    mode = str(ask(link, "SELECT @@GLOBAL.gtid_mode")[0][0]).upper()
    if mode == "ON" and (position.gtids or not position.file):
        return _start_by_gtids(link, position, identity)
    if position.gtids:
        raise SourceRefused(
            f"the position is a GTID set, and the server has gtid_mode = {mode}",
            hint="SET GLOBAL gtid_mode = ON, step by step (OFF_PERMISSIVE, ON_PERMISSIVE, ON)",
        )
    _check_file(link, position, identity, last_uuid)
    request = DumpRequest(position.file, position.offset)
    if mode != "ON":
        return LogStart(request, position, GtidOrigin.NONE)
    # GTIDs that are in no file of this server count as done: a file's head lacks them if they were set later (a
    # restore).
    gone = MySqlGtidSet.parse(str(ask(link, "SELECT @@GLOBAL.gtid_purged")[0][0])).format_text()
    if _is_anonymous(link, position.file):
        # A server with GTIDs sends nothing from such a file, and its next file begins with the set.
        return LogStart(request, replace(position, gtids=gone), GtidOrigin.FROM_FILE)
    # The file's head has the set of everything before the file; from there on every GTID is seen.
    head = BinlogPosition(position.file, _FIRST_EVENT, gone)
    return LogStart(DumpRequest(head.file, head.offset), head, GtidOrigin.FROM_FILE, skip_below=position.offset)


def _is_anonymous(link: Link, file: str) -> bool:
    """Whether the file's transactions have no GTIDs: the server starts a new file when that changes."""
    events = ask(link, "SHOW BINLOG EVENTS IN %s FROM 4 LIMIT 3", (file,))
    return any(row[2] == "Anonymous_Gtid" for row in events)


def _start_by_gtids(link: Link, position: BinlogPosition, identity: ServerIdentity) -> LogStart:
    row = ask(link, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged")[0]
    executed, gone = (MySqlGtidSet.parse(str(text)) for text in row)
    done = MySqlGtidSet.parse(position.gtids)
    missing = executed.find_missing(done)
    if missing:
        raise build_reset_error(missing) if identity.uuid in missing else build_missing_transactions_error(missing)
    lost = done.find_missing(gone)
    if lost:
        raise build_purged_error(lost)
    return LogStart(DumpRequest("", _FIRST_EVENT, done), position, GtidOrigin.KNOWN)


def _start_mariadb(link: Link, position: BinlogPosition, identity: ServerIdentity, last_uuid: str) -> LogStart:
    if _is_same_place(link, position, identity, last_uuid):
        return LogStart(DumpRequest(position.file, position.offset), position, GtidOrigin.KNOWN)
    if position.gtids or not position.file:
        _check_mariadb_state(link, position, identity)
        return LogStart(DumpRequest("", _FIRST_EVENT, position.gtids), position, GtidOrigin.KNOWN)
    _check_file(link, position, identity, last_uuid)
    gtids = ask(link, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
    if gtids is None:
        raise build_reset_error(f"there is no position {position.offset} in {position.file}")
    done = MariaDbGtidSet.parse(str(gtids)).format_text()
    at = BinlogPosition(position.file, position.offset, done)
    return LogStart(DumpRequest(at.file, at.offset), at, GtidOrigin.KNOWN)


def _is_same_place(link: Link, position: BinlogPosition, identity: ServerIdentity, last_uuid: str) -> bool:
    """Whether a position with GTIDs is where its file and offset say, at a server that numbers as it likes.

    Without gtid_strict_mode a number may be lower than one before it. The server's state then has only the last one,
    and a dump from a GTID is refused; file and offset still name one place, if the log before it has the same GTIDs.
    """
    known = position.file and position.gtids and last_uuid == identity.uuid
    if not known or int(ask(link, "SELECT @@GLOBAL.gtid_strict_mode")[0][0]):
        return False
    if read_log_files(link).get(position.file, 0) < position.offset:
        return False
    there = ask(link, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
    return there is not None and MariaDbGtidSet.parse(str(there)).last == MariaDbGtidSet.parse(position.gtids).last


def _check_mariadb_state(link: Link, position: BinlogPosition, identity: ServerIdentity) -> None:
    """The server's own greatest number of each (domain, server) must be at or above the position's."""
    state: dict[tuple[int, int], int] = {}
    for entry in str(ask(link, "SELECT @@GLOBAL.gtid_binlog_state")[0][0]).split(","):
        if entry.strip():
            domain, server, number = map(int, entry.split("-"))
            state[domain, server] = number
    for domain, (server, number) in MariaDbGtidSet.parse(position.gtids).last.items():
        if state.get((domain, server), 0) < number:
            missing = f"{domain}-{server}-{number}"
            raise (
                build_reset_error(missing)
                if server == identity.server_id
                else build_missing_transactions_error(missing)
            )


def _check_file(link: Link, position: BinlogPosition, identity: ServerIdentity, last_uuid: str) -> None:
    where = f"{position.file}:{position.offset}"
    if last_uuid and last_uuid != identity.uuid:
        raise SourceRefused(
            f"the position {where} belongs to server {last_uuid}, this is server {identity.uuid}",
            hint="file and offset are valid on one server only; with GTIDs the feeder can continue at another one",
        )
    files = read_log_files(link)
    if position.file in files:
        if position.offset > files[position.file]:
            raise build_reset_error(
                f"{position.file} has {files[position.file]} bytes, the position is {position.offset}"
            )
        return
    first = min(files, key=_parse_file_number, default="")
    if first and _parse_file_number(position.file) < _parse_file_number(first):
        raise build_purged_error(f"{where}; its first file is {first}")
    raise build_reset_error(f"there is no {position.file}; its first file is {first or 'missing'}")


def _parse_file_number(file: str) -> int:
    suffix = file.rpartition(".")[2]
    return int(suffix) if suffix.isdecimal() else 0
