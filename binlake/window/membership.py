"""The members of a window: the registry's pumps and every remembered pump, so that no pump can leave unnoticed.

Sources: DESIGN 3.3; hazards R-05 (vanished, offline with data), R-06 (another disk), R-26 (collected range).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from binlake import tso as oracle
from binlake.cluster.node import NodeStatus
from binlake.common.localfiles import NOT_KNOWN, DiskUse
from binlake.errors import BinlakeError, SourceUnavailable
from binlake.window.plan import Member, OpenTransactions, PumpCounters

FORGOTTEN = "forgotten"
"""The state of a pump that an operator gave up on: windows continue without it until it serves again."""


@dataclass(frozen=True)
class Probe:
    """A pump's answer about itself. An original pump does not answer, so all values are zero."""

    store_uuid: str = ""
    max_commit_ts: int = 0
    gc_ts: int = 0
    last_error: str = ""
    node_id: str = ""
    late_commits: int = 0
    early_commits: int = 0
    status_queries: int = 0
    lost_commit_ts: tuple[int, ...] = ()
    unmatched: int = 0
    oldest_start_ts: int = 0
    disk: DiskUse = NOT_KNOWN


def gather_members(
    pumps: Sequence[NodeStatus],
    remembered: Mapping[str, RememberedMember],
    lo: int,
    probe: Callable[[str], Probe],
) -> list[Member]:
    """The members of a window that starts after `lo`.

    `pumps` must have been listed after the TSO that bounds hi was fetched. `probe(host)` asks a pump for its own state
    and raises SourceUnavailable when it does not answer.
    """
    present = {pump.node_id for pump in pumps}
    known_pumps = {known.node_id: known for known in remembered.values() if known.state != FORGOTTEN}
    members = [
        _build_member(pump, known_pumps.get(pump.node_id), lo, probe)
        for pump in pumps
        if not _is_forgotten(pump, remembered)
    ]
    return members + [_build_vanished_member(known) for known in known_pumps.values() if known.node_id not in present]


def flag_future_watermarks(members: Sequence[Member], now: int) -> list[Member]:
    """Report a problem for each of `members` with a watermark above PD's clock.

    `now`: a TSO fetched after they were listed. Such a pump has a binlog that no transaction of this cluster can have
    written, and its watermark is above transactions that are still open (invariant 2).
    """
    return [
        replace(member, problem=_describe_future_watermark(member.watermark, now))
        if member.watermark > now + oracle.FUTURE_SLACK and not member.problem
        else member
        for member in members
    ]


def _describe_future_watermark(watermark: int, now: int) -> str:
    ahead_s = (oracle.extract_physical(watermark) - oracle.extract_physical(now)) // 1000
    return (
        f"its watermark {watermark} is {ahead_s} s above PD's clock: it has stored a binlog from the future"
        " (`binlake pump set-aside`)"
    )


def _is_forgotten(pump: NodeStatus, remembered: Mapping[str, RememberedMember]) -> bool:
    known = remembered.get(pump.node_id)
    is_offline = known is not None and known.state == FORGOTTEN and pump.state == "offline"
    # If its watermark is above the one at which it was forgotten, the pump has served since.
    return is_offline and known is not None and pump.max_commit_ts <= known.watermark


def _build_member(pump: NodeStatus, known: RememberedMember | None, lo: int, probe: Callable[[str], Probe]) -> Member:
    uuid = known.store_uuid if known else ""
    if pump.state == "offline":
        # A pump forced offline keeps its last heartbeat's watermark; a probe may have seen a higher one.
        seen = max(pump.max_commit_ts, known.watermark if known else 0)
        return Member(pump.node_id, pump.host, pump.state, seen, uuid)
    try:
        answer = probe(pump.host)
    except SourceUnavailable as error:
        return Member(pump.node_id, pump.host, pump.state, pump.max_commit_ts, uuid, f"unreachable: {error.message}")
    except BinlakeError as error:
        return Member(pump.node_id, pump.host, pump.state, pump.max_commit_ts, uuid, error.message)
    watermark = max(pump.max_commit_ts, answer.max_commit_ts)
    problem = _describe_other_pump(pump, answer) or _find_problem(uuid, answer, lo)
    counters = PumpCounters(answer.late_commits, answer.early_commits, answer.status_queries, answer.lost_commit_ts)
    undecided = OpenTransactions(answer.unmatched, answer.oldest_start_ts, answer.last_error)
    return Member(
        pump.node_id,
        pump.host,
        pump.state,
        watermark,
        answer.store_uuid or uuid,
        problem,
        counters,
        undecided,
        answer.disk,
    )


def _describe_other_pump(pump: NodeStatus, answer: Probe) -> str:
    if answer.node_id and answer.node_id != pump.node_id:
        return f"its address {pump.host} is served by {answer.node_id}"
    return ""


def _find_problem(uuid: str, answer: Probe, lo: int) -> str:
    if uuid and answer.store_uuid and uuid != answer.store_uuid:
        return f"it has another data directory (store {answer.store_uuid}, remembered {uuid})"
    if answer.gc_ts > 0 and answer.gc_ts >= lo:
        return f"it has collected binlogs up to {answer.gc_ts}: it has lost the range after {lo}"
    return ""


def _build_vanished_member(known: RememberedMember) -> Member:
    drained = known.state == "offline" and known.watermark <= known.landed_ts
    if drained:
        return Member(known.node_id, "", "offline", known.watermark, known.store_uuid)
    problem = f"vanished from the registry; last seen {known.state}, landed up to {known.landed_ts}"
    return Member(known.node_id, "", known.state, known.watermark, known.store_uuid, problem)


@dataclass(frozen=True)
class RememberedMember:
    """A pump as the last landed window recorded it. `store_uuid` is empty for an original pump."""

    node_id: str
    store_uuid: str
    state: str
    watermark: int
    landed_ts: int
