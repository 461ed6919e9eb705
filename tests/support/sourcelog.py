"""A source's log as the tests read it: settings for a private server, and the transactions that were read."""

from __future__ import annotations

from support.mariadb import MariaDb

from binlake.mysqlbinlog.model import BinlogPosition, SourceTransaction
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.server import connect, read_log_end
from binlake.pump_service.feeder.settings import SourceFile

SERVER_ID = 4_000_000


def source_of(*servers: MariaDb, **settings: object) -> SourceFile:
    """A feeder.toml source with the address of the first server, and the others as alternatives."""
    first, *others = servers
    addresses = tuple(f"{one.host}:{one.port}" for one in others)
    own = {"name": "s1", "host": first.host, "port": first.port, "user": first.user, "addresses": addresses}
    return SourceFile.model_validate({**own, **settings})


def end_of(server: MariaDb) -> BinlogPosition:
    """The position at which the server's log ends."""
    link = connect(source_of(server))
    try:
        return read_log_end(link)
    finally:
        link.close()


def transactions_until_now(
    server: MariaDb, since: BinlogPosition, *, end: BinlogPosition | None = None, **settings: object
) -> list[SourceTransaction]:
    """The transactions after `since` up to `end`, by default the log's current end."""
    end = end or end_of(server)
    log = open_log(source_of(server, **settings), SERVER_ID, since)
    taken: list[SourceTransaction] = []
    try:
        while not taken or _place(taken[-1].end) != _place(end):
            some = log.read(wait_s=30.0)
            assert some, f"no transaction came after {taken[-1].end if taken else since}: {log.trouble}"
            taken += some
    finally:
        log.end()
    return taken


def _place(position: BinlogPosition) -> tuple[str, ...]:
    # After the last transaction, the log may have events that belong to none; GTID sets do not change with them.
    return (position.gtids,) if position.gtids else (position.file, str(position.offset))
