"""A connection that writes: each transaction proves the fence first, and counts only once it is known to be stored.

Sources: hazards R-02 (proof first), R-38 (deadlocks), R-61 (a connection lost at COMMIT).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError, TargetBusy, TargetUnavailable, UnknownOutcome
from binlake.target.claim.confirmed import Confirmed
from binlake.target.claim.fence import Fence
from binlake.target.claim.marks import Marks
from binlake.target.claim.segments import Hook
from binlake.target.session.session import Session

log = structlog.get_logger()

TRIES = 5
"""Times a transaction is run when the server rolls it back or its COMMIT is lost."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Stored(Generic[T]):
    value: T


class FencedWriter:
    """A session and its row of the fence. `check` is asked before a repetition and may raise; `passed` is the hook.

    `alone`: shared by the writers of a run, so that what was rolled back for a deadlock is repeated one at a time.
    `confirmed`: shared, too; what all of them know to be stored.
    `marks`: with loopback control, what each transaction says of its origin.
    """

    def __init__(
        self,
        target: Target,
        session: Session,
        fence: Fence,
        *,
        check: Callable[[], None],
        passed: Hook,
        alone: threading.Lock,
        confirmed: Confirmed,
        marks: Marks | None = None,
    ) -> None:
        self.session = session
        self.fence = fence
        self.confirmed = confirmed
        self._target = target
        self._check = check
        self._passed = passed
        self._alone = alone
        self._marks = marks

    def transact(self, body: Callable[[Session], T], is_stored: Callable[[Session, T], bool]) -> T:
        """Run `body` in one transaction behind the fence until it is known to be stored; what `body` returned.

        `is_stored` looks, after a COMMIT whose answer was lost, whether what `body` returned is there. Raises what
        `body` raises, TargetBusy after TRIES, TargetUnavailable when the server does not come back.
        """
        for attempt in range(1, TRIES + 1):
            repeated: AbstractContextManager[object] = self._alone if attempt > 1 else nullcontext()
            with repeated:
                stored = self._attempt(body, is_stored, last=attempt == TRIES)
            if stored is not None:
                return stored.value
            self._check()
            time.sleep(min(0.05 * 2**attempt, 1.0))
        raise TargetUnavailable("every COMMIT was lost", where={"task": self.fence.task, "tries": TRIES})

    def prove(self) -> None:
        """Prove the fence in a transaction of its own, before a statement that commits by itself."""
        self.session.begin()
        count = self.fence.prove(self.session)
        self.session.commit_repeatable()
        self.confirmed.store(self.fence.worker, count)

    def _attempt(
        self, body: Callable[[Session], T], is_stored: Callable[[Session, T], bool], *, last: bool
    ) -> _Stored[T] | None:
        """None when the transaction is known not to be stored and may run again."""
        made: _Stored[T] | None = None
        count = 0
        try:
            self.session.begin()
            count = self.fence.prove(self.session)
            if self._marks is not None:
                self._marks.mark(self.session, self.fence.worker)
            made = _Stored(body(self.session))
            self._passed("before_commit")
            self.session.commit()
        except TargetBusy as error:
            self.session.rollback()
            log.warning("transaction_repeated", task=self.fence.task, worker=self.fence.worker, error=str(error))
            if last:
                raise
            return None
        except UnknownOutcome as error:
            log.warning("commit_outcome_unknown", task=self.fence.task, worker=self.fence.worker, error=str(error))
            return made if made is not None and self._look_again(made, is_stored) else None
        except BaseException:
            self._give_up()
            raise
        self.confirmed.store(self.fence.worker, count)
        self._passed("after_commit")
        return made

    def _give_up(self) -> None:
        """Roll back at once: others of the run may wait for these locks until the server's timeout."""
        try:
            self.session.rollback()
        except BinlakeError as error:
            # The server rolls back what its connection lost; the error before this one is what matters.
            log.warning("not_rolled_back", task=self.fence.task, worker=self.fence.worker, error=str(error))

    def _look_again(self, made: _Stored[T], is_stored: Callable[[Session, T], bool]) -> bool:
        """What the server holds. The proof waits until the lost session's transaction is over, so it is final.

        Raises TargetUnavailable where the server lacks what was confirmed before: then that comes first.
        """
        self.session.close()
        self.session = Session(self._target)
        self.confirmed.require_held(self.session, self.fence)
        self.session.begin()
        count = self.fence.prove(self.session)
        stored = is_stored(self.session, made.value)
        self.session.rollback()
        if stored:
            self.confirmed.store(self.fence.worker, count - 1)
        # The server may still keep the lost session, and with it the name that a take-over looks for.
        self.fence.hold(self.session)
        return stored
