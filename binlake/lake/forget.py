"""Lets windows continue without a permanently lost pump. An operator accepts the loss, which is recorded (R-05)."""

from __future__ import annotations

import structlog

from binlake.cluster.node import NodeStatus
from binlake.errors import ConfigError, Permanent
from binlake.lake.lock import hold_lake_lock
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.pipeline import BY_NAME
from binlake.window.membership import FORGOTTEN, RememberedMember

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
