"""The table `pump_member`: every pump ever seen, so that none vanishes unnoticed (DESIGN 3.3, hazards R-05, R-06).

Windows continue without a permanently lost pump when it is forgotten: an operator accepts the loss, which is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import structlog

from binlake.cluster.node import NodeStatus
from binlake.common.lakecolumns import PumpMember
from binlake.errors import ConfigError, Permanent
from binlake.lake.control import ControlTable
from binlake.lake.controltables import PUMP_MEMBER
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import BY_NAME
from binlake.window.membership import FORGOTTEN, RememberedMember


class MemberTable:
    """Reads and extends `pump_member`; `pinned`: as of ControlTable."""

    def __init__(self, paths: LakePaths, *, pinned: bool = False) -> None:
        self._table = ControlTable(paths.locate_table(PUMP_MEMBER.name), PUMP_MEMBER, pinned=pinned)

    def refresh(self) -> None:
        """Let later reads of a pinned table find the present records."""
        self._table.refresh()

    def remember(self, members: Sequence[RememberedMember]) -> None:
        """Replace the records of these members; others stay. The caller must hold the lake's lock `landing`."""
        now = time.time_ns() // 1_000_000
        rows = self._read_rows() | {member.node_id: {**vars(member), PumpMember.AT_MS: now} for member in members}
        # One row per node, replaced in one commit. With a row per window, each window would read all earlier rows.
        self._table.replace(list(rows.values()))

    def read_all(self) -> dict[str, RememberedMember]:
        """The last record of each node."""
        rows = self._read_rows().items()
        return {node: RememberedMember(**{k: v for k, v in row.items() if k != PumpMember.AT_MS}) for node, row in rows}

    def tidy(self) -> dict[str, int]:
        """As ControlTable.tidy."""
        return self._table.tidy()

    def _read_rows(self) -> dict[str, dict[str, Any]]:
        # Older lakes have several rows per node; the newest one is valid.
        rows = sorted(self._table.read_rows(), key=lambda row: (row[PumpMember.LANDED_TS], row[PumpMember.AT_MS]))
        return {row[PumpMember.NODE_ID]: row for row in rows}


log = structlog.get_logger(__name__)


def forget(paths: LakePaths, node_id: str, status: NodeStatus | None, *, accept_loss: bool) -> str:
    """Leave the pump `node_id` out of future windows. Returns a message. `status`: its registry entry, if any.

    Raises Permanent for a pump that is unknown or not offline, and without `accept_loss` a ConfigError that names the
    range that would be lost.
    """
    with hold_lake_lock(paths, BY_NAME["land"].lock):
        return _forget(paths, node_id, status, accept_loss)


def _forget(paths: LakePaths, node_id: str, status: NodeStatus | None, accept_loss: bool) -> str:
    members, windows = MemberTable(paths), WindowLog(paths)
    known = members.read_all().get(node_id)
    _require_offline(node_id, known, status)
    landed = known.landed_ts if known else windows.find_landed_ts() or 0
    watermark = max(known.watermark if known else 0, status.max_commit_ts if status else 0)
    reach = f"({landed}, {watermark}]" if watermark > landed else f"above {landed} (nothing newer is known about it)"
    if not accept_loss:
        raise ConfigError(
            f"the binlogs of {node_id} with commit_ts {reach} would be lost",
            where={"lake": paths.root},
            hint="restore its disk; or, if it is permanently lost, run this again with --accept-loss",
        )
    detail = {"pump": node_id, "lost": reach, "last_state": known.state if known else status and status.state}
    windows.record(WindowEvent("forget", landed, max(landed, watermark), "accepted-loss", detail=detail))
    uuid = known.store_uuid if known else ""
    members.remember([RememberedMember(node_id, uuid, FORGOTTEN, watermark, landed)])
    log.warning("pump_forgotten", pump=node_id, lost=reach)
    return f"{node_id} is forgotten; its binlogs with commit_ts {reach} are lost"


def _require_offline(node_id: str, known: RememberedMember | None, status: NodeStatus | None) -> None:
    if status is None and (known is None or known.state == FORGOTTEN):
        raise Permanent("neither the registry nor this lake knows this pump", where={"pump": node_id})
    if status is not None and status.state != "offline":
        raise Permanent(
            "only a pump that is offline can be forgotten",
            where={"pump": node_id, "state": status.state},
            hint=f"start it again; or, if it is gone: binlake update-pump --node-id {node_id} --state offline",
        )
