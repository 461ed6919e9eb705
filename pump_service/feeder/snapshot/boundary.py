"""The position of a snapshot, compared with transactions of the log and with how far the log has been read."""

from __future__ import annotations

import re

from binlake.errors import Transient
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import BinlogPosition, Flavor, SourceTransaction
from binlake.pump_service.feeder.parts import ReadUpTo

_GTID = re.compile(r"(?:[0-9a-f-]{36}(?::[a-z_]\w*)?:\d+|\d+-\d+-\d+)(?:/ddl)?")


class CannotCombineSnapshots(Transient):
    """What was read in several snapshots cannot be combined into one state: the load starts again."""


class SnapshotBoundary:
    """The position of a snapshot, compared with transactions of the log."""

    def __init__(self, flavor: Flavor, position: BinlogPosition) -> None:
        self._flavor, self._position = flavor, position
        self._done = parse_gtid_set(flavor, position.gtids) if position.gtids else None

    def contains(self, transaction: SourceTransaction) -> bool:
        """Whether the snapshot includes `transaction`."""
        if self._done is None:
            end = transaction.end
            return _build_sort_key(end.file, end.offset) <= _build_sort_key(self._position.file, self._position.offset)
        if not _GTID.fullmatch(transaction.id):
            raise CannotCombineSnapshots(f"transaction {transaction.id} between two snapshots has no GTID")
        return self._done.contains(transaction.id.removesuffix("/ddl"))

    def is_at_or_after(self, other: BinlogPosition) -> bool:
        """Whether this position is at or after `other`, of the same log."""
        if self._done is not None:
            return self._done.contains_set(parse_gtid_set(self._flavor, other.gtids))
        at = _build_sort_key(self._position.file, self._position.offset)
        return not other.gtids and at >= _build_sort_key(other.file, other.offset)

    def is_reached(self, source_log: ReadUpTo) -> bool:
        """Whether the log has been read up to here."""
        at = source_log.position
        if self._done is not None:
            return parse_gtid_set(self._flavor, at.gtids).contains_set(self._done)
        return max(
            _build_sort_key(at.file, at.offset), _build_sort_key(*source_log.received_position)
        ) >= _build_sort_key(self._position.file, self._position.offset)


def _build_sort_key(file: str, offset: int) -> tuple[int, int]:
    """The sort key of a position without GTIDs, among positions of one server."""
    return int(file.rpartition(".")[2] or 0), offset
