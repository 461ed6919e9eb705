"""Proposes the next window. hi never passes a member that has not proved that it is complete up to there.

Sources: DESIGN 3.3; hazards R-05, R-35.

The caller must have listed the members *after* it fetched `tso`. A pump that joins later has nothing at or below hi,
because hi < tso, and a transaction requests its commit_ts only after its prewrite is acknowledged (MISSION S0-58).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from binlake import tso as oracle
from binlake.common.localfiles import NOT_KNOWN, DiskUse
from binlake.window.manifest import WindowManifest

State = Literal["ready", "blocked", "waiting"]


@dataclass(frozen=True)
class PumpCounters:
    """What a pump has counted since it started.

    `late_commits` (hazards R-08) and `early_commits` (hazards R-09): transactions that windows may have missed;
    `status_queries`: queries for writers that did not send their commit; `lost_commit_ts`: all transactions ever given
    up by command, whose rows the pump does not have.
    """

    late_commits: int = 0
    early_commits: int = 0
    status_queries: int = 0
    lost_commit_ts: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpenTransactions:
    """Transactions of which a pump has the prewrite but neither commit nor rollback. Its watermark stays below them.

    `count`: how many; `start_ts`: the lowest one (0: none); `reported`: what the pump reports as the reason.
    """

    count: int = 0
    start_ts: int = 0
    reported: str = ""

    def __str__(self) -> str:
        reported = f"; the pump reports: {self.reported}" if self.reported else ""
        if not self.start_ts:
            return reported
        since = oracle.to_datetime(self.start_ts).isoformat(timespec="seconds")
        others = f" and {self.count - 1} more" if self.count > 1 else ""
        return f", held by the transaction of start_ts {self.start_ts} ({since}){others}{reported}"


@dataclass(frozen=True)
class Member:
    """One pump, from the registry or remembered, with its `watermark` (commit_ts; 0 = none yet) and `state`.

    `problem`: the reason, for people, why it cannot serve the window (vanished, unreachable, another store).
    """

    node_id: str
    host: str
    state: str
    watermark: int
    store_uuid: str = ""
    problem: str = ""
    counters: PumpCounters = PumpCounters()
    open_transactions: OpenTransactions = OpenTransactions()
    disk: DiskUse = NOT_KNOWN

    def is_drained(self, landed_ts: int) -> bool:
        """True when nothing of this member is left to land: it is offline with nothing above `landed_ts`."""
        return self.state == "offline" and self.watermark <= landed_ts


@dataclass(frozen=True)
class Blocker:
    """A pump that blocks the window, the commit_ts since which it does, and the reason."""

    node_id: str
    since: int
    reason: str

    def __str__(self) -> str:
        return f"{self.node_id} since {self.since} ({self.reason})"


@dataclass(frozen=True)
class WindowPlan:
    """The proposal. `ready`: lo < hi; `blocked`: by the named pumps; `waiting`: the next stop is not reached yet."""

    state: State
    lo: int
    hi: int
    members: tuple[Member, ...]
    blocked_by: tuple[Blocker, ...] = ()
    reason: str = ""


def propose_window(
    *,
    lo: int,
    tso: int,
    members: Sequence[Member],
    stop_points: Sequence[int] = (),
    reach: int | None = None,
    stop_ts: int | None = None,
) -> WindowPlan:
    """The next window after `lo`.

    hi is the minimum of: every member's watermark, `tso` - 1, the next stop point, `lo` + `reach` (see `reach_after`;
    None: no limit), `stop_ts`. If `stop_ts` is above the watermarks, the state is `waiting`; the window is never
    silently cut short.
    """
    active = [member for member in members if not member.is_drained(lo)]
    blockers = _find_blockers(lo, active)
    if blockers:
        return WindowPlan("blocked", lo, lo, tuple(members), tuple(blockers), "; ".join(map(str, blockers)))
    reachable = min([tso - 1, *(member.watermark for member in active)])
    hi = min([reachable, *_list_limits(lo, stop_points, reach)])
    if stop_ts is not None and stop_ts <= lo:
        return WindowPlan(
            "waiting", lo, lo, tuple(members), reason=f"stop_ts {stop_ts} is landed already (landed ts {lo})"
        )
    if stop_ts is not None and reachable < stop_ts and hi == reachable:
        return WindowPlan(
            "waiting", lo, hi, tuple(members), reason=f"stop_ts {stop_ts} is above the watermark {reachable}"
        )
    hi = hi if stop_ts is None else min(hi, stop_ts)
    if hi <= lo:
        return WindowPlan("waiting", lo, lo, tuple(members), reason=f"the clock {tso} is not above {lo}")
    return WindowPlan("ready", lo, hi, tuple(members))


def _find_blockers(lo: int, active: Sequence[Member]) -> list[Blocker]:
    if not active:
        return [Blocker("(none)", lo, "no pump is registered")]
    found = []
    for member in active:
        if member.problem:
            found.append(Blocker(member.node_id, lo, member.problem))
        elif member.state == "offline":
            found.append(Blocker(member.node_id, lo, f"offline with unread binlogs up to {member.watermark}"))
        elif member.watermark <= lo:
            reason = "no watermark yet" if member.watermark == 0 else f"{member.state}, watermark {member.watermark}"
            found.append(Blocker(member.node_id, lo, f"{reason}{member.open_transactions}"))
    return found


def reach_after(last: WindowManifest | None, max_seconds: int) -> int | None:
    """The maximum length of the window after `last` in commit_ts: `max_seconds`, or twice that of an empty `last`.

    So even a year without data takes a few windows instead of one per hour. None (no limit) for the first window of a
    replication, as it is unknown where its data begins.
    """
    if last is None:
        return None
    usual = oracle.compose(max_seconds * 1000)
    return usual if last.dml or last.ddls else max(usual, 2 * (last.hi - last.lo))


def _list_limits(lo: int, stop_points: Sequence[int], reach: int | None) -> list[int]:
    limits = [min((stop for stop in stop_points if stop > lo), default=oracle.MAX_TS)]
    if reach is not None:
        limits.append(lo + reach)
    return limits
