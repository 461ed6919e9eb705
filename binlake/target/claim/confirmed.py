"""A connection of a run writes only where everything is that the run knows to be stored (hazards R-61).

Each transaction adds 1 to its connection's row of the fence: so that row counts what a server holds of a connection.
Each connection, a first or a renewed one, compares it with what was confirmed. A server that took the target's
place with less ends the run, and the next one begins with what that server holds.
"""

from __future__ import annotations

import threading

from binlake.config.model import Target
from binlake.errors import TargetUnavailable
from binlake.statements.literal import qualified
from binlake.target.claim.fence import Fence
from binlake.target.session.session import Session

_NEXT = (
    "the next run starts from what this server holds and applies the rest again; a copy without gaps in its"
    " transactions is enough for that"
)


class Confirmed:
    """What the connections of one run know to be stored; shared by them. `session`: the run's first connection."""

    def __init__(self, session: Session, target: Target) -> None:
        self._target = target
        self._server = self._identity(session)
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def store(self, worker: int, count: int) -> None:
        """Transaction number `count` of a connection is known to be stored."""
        with self._lock:
            self._counts[worker] = max(count, self._counts.get(worker, 0))

    def require_held(self, session: Session, fence: Fence) -> None:
        """The server of a new connection is the run's, with all of it. Raises TargetUnavailable."""
        found = self._identity(session)
        if found != self._server:
            raise TargetUnavailable(
                "another server answers at the target's address than when this run began",
                where={"target": session.place, "began_on": self._server, "answers": found},
                hint=_NEXT,
            )
        with self._lock:
            known = dict(self._counts)
        table = qualified(fence.schema, "binlake_fence")
        rows = session.rows(f"SELECT worker, epoch, val FROM {table} WHERE task = %s", (fence.task,))
        held = {int(worker): int(count) for worker, epoch, count in rows if int(epoch) >= fence.epoch}
        lacking = {worker: count - held.get(worker, 0) for worker, count in known.items()}
        if 0 not in held or any(number > 0 for number in lacking.values()):
            raise TargetUnavailable(
                "the target lacks transactions that it had confirmed: an older copy replaced it",
                where={
                    "target": session.place,
                    "task": fence.task,
                    "transactions": sum(map(_positive, lacking.values())),
                },
                hint=_NEXT,
            )

    def _identity(self, session: Session) -> str:
        # The servers of a TiDB cluster hold the same rows.
        if self._target.db_type == "tidb":
            return ""
        return ":".join(map(str, session.rows("SELECT @@hostname, @@port, @@server_id")[0]))


def _positive(number: int) -> int:
    return max(number, 0)
