"""Two-phase transactions: what XA PREPARE logs, and which transaction a later XA COMMIT refers to."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES

_PREPARE = struct.Struct("<BIII")
_XID = re.compile(r"(?i)^\s*XA\s+\w+\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)")


class Xid(NamedTuple):
    """The id of a two-phase transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


def read_prepare(event: bytes) -> tuple[Xid, bool]:
    """The transaction that an XA_PREPARE event (without checksum) ends, and whether it is committed in one phase."""
    one_phase, format_id, gtrid_size, bqual_size = _PREPARE.unpack_from(event, HEADER_BYTES)
    at = HEADER_BYTES + _PREPARE.size
    return Xid(format_id, event[at : at + gtrid_size], event[at + gtrid_size : at + gtrid_size + bqual_size]), bool(
        one_phase
    )


def parse_xid(text: str) -> Xid:
    """The transaction that `XA COMMIT X'61',X'',1` names; the servers log them in this form. Raises WireError."""
    match = _XID.match(text)
    if match is None:
        raise WireError(f"{text!r} does not name a transaction")
    return Xid(int(match[3]), bytes.fromhex(match[1]), bytes.fromhex(match[2]))
