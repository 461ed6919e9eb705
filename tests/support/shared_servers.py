"""After each test module, the servers that modules share have no database: the next one could not create its own.

Which modules share a process, and so a server, differs from run to run: such a failure would come and go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from support.mariadb import MariaDb

Server = TypeVar("Server", bound="MariaDb")
_SERVERS: list[MariaDb] = []


@contextlib.contextmanager
def shared(server: Server) -> Iterator[Server]:
    """`server`, as a fixture of the session."""
    _SERVERS.append(server)
    try:
        yield server
    finally:
        _SERVERS.remove(server)


def drop_databases() -> None:
    """Drop what a module left on these servers; one query to each that is empty."""
    for server in _SERVERS:
        if server.list_databases():
            server.wipe()
