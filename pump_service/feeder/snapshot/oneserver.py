"""Sessions at one server of a source: a snapshot, its position and its definitions belong to one server's log.

Another server may be behind, or lack what the first one has; a name or an address may lead to either.
"""

from __future__ import annotations

import structlog

from binlake.errors import SourceUnavailable
from binlake.pump_service.feeder.server import Address, Link, connect, derive_flavor
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.startposition import ServerIdentity, read_identity

log = structlog.get_logger()

_READ_TIMEOUT_S = 600  # for one answer: finding the bound of a chunk may take long


class OneServer:
    """The first of `source`'s servers that answers, and from then on only that one. Not thread-safe."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._address: Address | None = None
        self._identity: ServerIdentity | None = None

    def connect(self) -> Link:
        """A session. Raises pymysql's errors and SourceUnavailable, also if another server answers at the address."""
        link = self._open()
        try:
            identity = read_identity(link, derive_flavor(link))
            if identity != (self._identity or identity):
                raise SourceUnavailable(
                    "two servers answer at one address of the source, and a snapshot is read from one server",
                    hint="if a proxy or a name leads to several servers, list each one in `addresses` of the source",
                    where={"address": ":".join(map(str, self._address or ())), "server": identity.uuid},
                )
        except BaseException:
            link._force_close()  # type: ignore[attr-defined]
            raise
        self._identity = identity
        return link

    def _open(self) -> Link:
        addresses = [self._address] if self._address else self._source.servers
        for address in addresses[:-1]:
            try:
                return self._open_at(address)
            except SourceUnavailable as error:
                log.warning("server_unavailable", source=self._source.name, error=str(error))
        return self._open_at(addresses[-1])

    def _open_at(self, address: Address) -> Link:
        link = connect(self._source, address, read_timeout=_READ_TIMEOUT_S)
        self._address = address
        return link
