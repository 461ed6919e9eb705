"""Decides when a closing pump may go offline: once every consumer has read all it holds (DESIGN 3.3, hazards R-05).

Unlike the original, a pump without any registered consumer stays, because its binlogs have not been pulled. Once no P
waits, the pump writes one last fake and no more: a consumer that works in batches can reach a fixed watermark, but not
one that keeps moving. If other pumps are closing too, this pump raises its last fake to their watermark, once for each,
so that one window covers them all.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from binlake.errors import BinlakeError, Permanent, WireError
from binlake.pump_service.pump.membership import Members
from binlake.pump_service.pump.storage import PumpStorage

log = structlog.get_logger()

_SETTLE_S = 1.0


class FakeSource(Protocol):
    """Writes fakes (`FakeWriter`)."""

    def write(self, ts: int = 0) -> int:
        """Store one fake, at `ts` if given; its ts. Raises BinlakeError."""


class Departure:
    """Checked repeatedly while the pump is closing, until nothing is left to wait for.

    `compared_watermark`: the watermark with which the consumers were last compared.
    """

    def __init__(self, storage: PumpStorage, members: Members, fakes: FakeSource, node_id: str = "") -> None:
        self._node_id = node_id
        self._joined: set[str] = set()
        self._storage = storage
        self._members = members
        self._fakes = fakes
        self._sealed = 0
        self.compared_watermark = 0

    def find_reason_to_wait(self) -> str:
        """Why the pump must stay, in words for people; empty = it may go."""
        try:
            return self._check_unmatched() or self._check_consumers()
        except BinlakeError as error:
            return str(error)

    def _check_unmatched(self) -> str:
        count, oldest = self._storage.count_unmatched()
        if count:
            self._sealed = 0
            self._fakes.write()
            return f"{count} prewrites wait for their commit or rollback, the oldest has start_ts {oldest}"
        if not self._sealed:
            self._sealed = self._fakes.write()
            log.info("last_fake", ts=self._sealed)
        self._join_others()
        self._storage.wait_above(self._sealed - 1, _SETTLE_S, lambda: False)
        return "" if self._storage.watermark >= self._sealed else "the last fake binlog is not indexed yet"

    def _join_others(self) -> None:
        """Raise the last fake to another closing pump's watermark; no transaction can reach this pump any more."""
        try:
            others = self._members.list_pumps()
        except WireError:
            return  # `pumps` reports an unreadable entry; here it can only cost one more window
        for other in others:
            is_joined = other.node_id in (self._node_id, *self._joined)
            if not is_joined and other.state == "closing" and other.max_commit_ts > self._sealed:
                self._joined.add(other.node_id)
                self._join(other.node_id, other.max_commit_ts)

    def _join(self, node_id: str, mark: int) -> None:
        try:
            self._sealed = self._fakes.write(mark)
        except Permanent as error:
            log.warning("mark_not_joined", pump=node_id, error=str(error))
        else:
            log.info("last_fake", ts=mark, with_pump=node_id)

    def _check_consumers(self) -> str:
        self.compared_watermark = watermark = self._storage.watermark
        consumers = [one for one in self._members.list_drainers() if one.state != "offline"]
        if not consumers:
            return f"no consumer is registered: the binlogs up to {watermark} have not been pulled"
        behind = [f"{one.node_id} at {one.max_commit_ts}" for one in consumers if one.max_commit_ts < watermark]
        return f"consumers have not pulled all binlogs up to {watermark}: {', '.join(behind)}" if behind else ""
