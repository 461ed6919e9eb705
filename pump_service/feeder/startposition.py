"""Whether a server's log can be read from a position on, and where a dump of it begins.

A position from which a server cannot continue is refused with the reason: purged, reset, another server, not yet there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.events.gtid import MariaDbGtidSet, MySqlGtidSet
from binlake.mysqlbinlog.events.transactions import GtidOrigin
from binlake.mysqlbinlog.model import BinlogPosition, Flavor
from binlake.pump_service.feeder.dump import DumpRequest
from binlake.pump_service.feeder.logerrors import (
    build_missing_transactions_error,
    build_purged_error,
    build_reset_error,
)
from binlake.pump_service.feeder.server import Link, ask, read_log_files

SERVER_FACT = "server of "
"""The journal's fact with this and a source's name has the server whose log the source's position belongs to."""
_FIRST_EVENT = 4


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
