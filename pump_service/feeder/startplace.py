"""Whether a server's log can be read on from a position, and where a dump of it begins.

A position that a server cannot continue is refused here by name: purged, reset, another server, not yet there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from binlake.errors import SourceRefused
from binlake.mysqlbinlog.events.transactions import Gtids
from binlake.mysqlbinlog.gtid import MariaDbGtidSet, MySqlGtidSet
from binlake.mysqlbinlog.model import Flavor, Position
from pump_service.feeder.dump import Place
from pump_service.feeder.logerrors import lacks, purged, was_reset
from pump_service.feeder.server import Link, ask, log_files

SERVER = "server of "
"""What the journal's fact about the server begins with, of whose log a source's place is; the source's name follows."""
_FIRST_EVENT = 4


@dataclass(frozen=True, slots=True)
class Start:
    """`place`: what to ask for; `position`: of the first event; `gtids`: where its set comes from; `skip_below`: offset
    in the first file below which transactions were read before."""

    place: Place
    position: Position
    gtids: Gtids
    skip_below: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """A server: MySQL's UUID (MariaDB has none: its id), and its id."""

    uuid: str
    server_id: int


def read_identity(link: Link, flavor: Flavor) -> Identity:
    """Of the server behind `link`. Raises pymysql's errors."""
    server_id = int(ask(link, "SELECT @@GLOBAL.server_id")[0][0])
    uuid = str(ask(link, "SELECT @@GLOBAL.server_uuid")[0][0]) if flavor is Flavor.MYSQL else str(server_id)
    return Identity(uuid, server_id)


def start_of(link: Link, flavor: Flavor, position: Position, identity: Identity, last_uuid: str) -> Start:
    """Where the dump begins. `last_uuid`: the server that the position was read from, "" = not known.

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
    place = Place(position.file, position.offset)
    if mode != "ON":
        return Start(place, position, Gtids.NONE)
    # What is in no file of this server counts as done: a head does not have it when it was set later (a restore).
    gone = MySqlGtidSet.parse(str(ask(link, "SELECT @@GLOBAL.gtid_purged")[0][0])).text()
    if _is_anonymous(link, position.file):
        # A server with GTIDs sends nothing of such a file, and its next one begins with the set.
        return Start(place, replace(position, gtids=gone), Gtids.FROM_FILE)
    # The file's head tells the set of what is before it; from there on every GTID is seen.
    head = Position(position.file, _FIRST_EVENT, gone)
    return Start(Place(head.file, head.offset), head, Gtids.FROM_FILE, skip_below=position.offset)


def _is_anonymous(link: Link, file: str) -> bool:
    """Whether the file's transactions have no GTIDs: the server turns the log over when that changes."""
    events = ask(link, "SHOW BINLOG EVENTS IN %s FROM 4 LIMIT 3", (file,))
    return any(row[2] == "Anonymous_Gtid" for row in events)


def _start_by_gtids(link: Link, position: Position, identity: Identity) -> Start:
    row = ask(link, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged")[0]
    executed, gone = (MySqlGtidSet.parse(str(text)) for text in row)
    done = MySqlGtidSet.parse(position.gtids)
    missing = executed.missing_of(done)
    if missing:
        raise was_reset(missing) if identity.uuid in missing else lacks(missing)
    lost = done.missing_of(gone)
    if lost:
        raise purged(lost)
    return Start(Place("", _FIRST_EVENT, done), position, Gtids.KNOWN)


def _start_mariadb(link: Link, position: Position, identity: Identity, last_uuid: str) -> Start:
    if position.gtids or not position.file:
        _check_mariadb_state(link, position, identity)
        return Start(Place("", _FIRST_EVENT, position.gtids), position, Gtids.KNOWN)
    _check_file(link, position, identity, last_uuid)
    gtids = ask(link, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
    if gtids is None:
        raise was_reset(f"there is no position {position.offset} in {position.file}")
    done = MariaDbGtidSet.parse(str(gtids)).text()
    at = Position(position.file, position.offset, done)
    return Start(Place(at.file, at.offset), at, Gtids.KNOWN)


def _check_mariadb_state(link: Link, position: Position, identity: Identity) -> None:
    """The server's own greatest number of each (domain, server) must be at or above the position's."""
    state: dict[tuple[int, int], int] = {}
    for entry in str(ask(link, "SELECT @@GLOBAL.gtid_binlog_state")[0][0]).split(","):
        if entry.strip():
            domain, server, number = map(int, entry.split("-"))
            state[domain, server] = number
    for domain, (server, number) in MariaDbGtidSet.parse(position.gtids).last.items():
        if state.get((domain, server), 0) < number:
            missing = f"{domain}-{server}-{number}"
            raise was_reset(missing) if server == identity.server_id else lacks(missing)


def _check_file(link: Link, position: Position, identity: Identity, last_uuid: str) -> None:
    where = f"{position.file}:{position.offset}"
    if last_uuid and last_uuid != identity.uuid:
        raise SourceRefused(
            f"the position {where} is of server {last_uuid}, this one is {identity.uuid}",
            hint="file and offset mean something on one server only; with GTIDs the feeder can go on at another",
        )
    files = log_files(link)
    if position.file in files:
        if position.offset > files[position.file]:
            raise was_reset(f"{position.file} has {files[position.file]} bytes, the position is {position.offset}")
        return
    first = min(files, key=_number, default="")
    if first and _number(position.file) < _number(first):
        raise purged(f"{where}; its first file is {first}")
    raise was_reset(f"there is no {position.file}; its first file is {first or 'missing'}")


def _number(file: str) -> int:
    suffix = file.rpartition(".")[2]
    return int(suffix) if suffix.isdecimal() else 0
