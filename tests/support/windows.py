"""Windows for apply tests: statements in memory, their manifest, and runs in a process that can be killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Literal

from support.children import start_child
from support.mariadb import MariaDb

from binlake.config.servers import TargetSection
from binlake.errors import TargetUnavailable
from binlake.statements.batch import (
    UNCHECKED,
    Phase,
    StatementBatch,
    compute_digest_of_index,
    compute_statement_digest,
    convert_batch_to_row,
)
from binlake.target import ApplyResult, ExpectedState, SegmentPlan, TargetSession, WriteAhead, apply_window
from binlake.target.apply import modes
from binlake.target.definitions.definitions import read_definitions
from binlake.target.session.session import StopFlag
from binlake.window.manifest import ApplyManifest

CLUSTER = 6791641053252586769
NAME = "shop"
Kind = Literal["ddl", "delete", "replace", "insert"]


@dataclass
class Window:
    """A StatementSource that its methods fill; `lo` and `hi` are commit_ts."""

    lo: int
    hi: int
    plans: list[SegmentPlan] = field(default_factory=list)
    written: list[StatementBatch] = field(default_factory=list)
    label: str = ""

    def __post_init__(self) -> None:
        self.plans = self.plans or [SegmentPlan(0, self.hi, 1)]

    def ddl(
        self,
        commit_ts: int,
        sql: str | tuple[str, ...],
        touched: Sequence[tuple[str, str]],
        after: ExpectedState | None = None,
        *,
        repeatable: bool = True,
        db: str = "app",
    ) -> Window:
        """A DDL that starts the next segment."""
        self.plans[-1] = replace(self.plans[-1], end_ts=commit_ts - 1)
        number = len(self.plans)
        batch = _batch(number, Phase.DDL, 0, "ddl", (sql,) if isinstance(sql, str) else sql, db=db)
        self.plans.append(SegmentPlan(number, self.hi, number + 1, batch, commit_ts, tuple(touched), after, repeatable))
        return self

    def delete(self, *keys: int) -> Window:
        """Phase 1 on app.t."""
        return self._add(Phase.DELETE, "delete", f"DELETE FROM app.t WHERE id IN ({', '.join(map(str, keys))})")

    def put(self, *rows: tuple[int, str], verify: bool = False) -> Window:
        """Phase 2 on app.t(id, v): one REPLACE."""
        values = ", ".join(f"({key}, '{value}')" for key, value in rows)
        keys = ", ".join(str(key) for key, _ in rows)
        check = f"SELECT COUNT(*) FROM app.t WHERE id IN ({keys})" if verify else ""
        sql = f"REPLACE INTO app.t (id, v) VALUES {values}"
        return self._add(Phase.WRITE, "replace", sql, rows=len(rows), verify=(check, len(rows) if verify else 0))

    def log(self, *texts: str) -> Window:
        """Phase 2 on the keyless app.log(line): one INSERT, its affected rows checked."""
        values = ", ".join(f"('{text}')" for text in texts)
        return self._add(
            Phase.WRITE,
            "insert",
            f"INSERT INTO app.log VALUES {values}",
            rows=len(texts),
            expect=len(texts),
            table="log",
        )

    def unlog(self, text: str) -> Window:
        """Phase 1 on the keyless app.log: delete one row by value."""
        sql = f"DELETE FROM app.log WHERE line = '{text}' LIMIT 1"
        return self._add(Phase.DELETE, "delete", sql, expect=1, table="log")

    def statement(self, sql: str, phase: Phase = Phase.WRITE, table: str = "t") -> Window:
        """Add any statement."""
        return self._add(phase, "replace" if phase == Phase.WRITE else "delete", sql, table=table)

    def _add(
        self,
        phase: Phase,
        kind: Kind,
        sql: str,
        *,
        rows: int = 1,
        expect: int = UNCHECKED,
        verify: tuple[str, int] = ("", 0),
        table: str = "t",
    ) -> Window:
        segment = len(self.plans) - 1
        number = sum(1 for b in self.written if (b.segment, b.phase) == (segment, phase))
        self.written.append(
            _batch(segment, phase, number, kind, (sql,), rows=rows, expect=expect, verify=verify, table=table)
        )
        return self

    def into(self, target: TargetSection, *names: tuple[str, str]) -> Window:
        """Set the tables `names`, as they are on the target now, as those that get rows in the last segment."""
        with closing(TargetSession(target)) as session:
            forms = read_definitions(session, names, target.db_type).tables
        self.plans[-1] = replace(self.plans[-1], expected=ExpectedState(tables=forms))
        return self

    def list_segments(self) -> list[SegmentPlan]:
        """As StatementSource."""
        return list(self.plans)

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """As StatementSource."""
        return (b for b in self.written if (b.segment, b.phase) == (segment, phase))

    def manifest(self) -> ApplyManifest:
        """The manifest that convert would have pinned."""
        every = [*self.written, *(plan.ddl for plan in self.plans if plan.ddl)]
        digest = compute_digest_of_index(convert_batch_to_row(batch) for batch in every)
        rows = sum(b.rows for b in self.written)
        return ApplyManifest(
            replication=NAME,
            sink="sql",
            cluster_id=CLUSTER,
            lo=self.lo,
            hi=self.hi,
            config_hash="c",
            safe_mode="always",
            definitions="d",
            change=self.label,
            statement=digest,
            segments=len(self.plans),
            rows=rows,
            schema_version=len(self.plans),
            windows=(f"{self.lo}-{self.hi}",),
        )


def _batch(
    segment: int,
    phase: Phase,
    number: int,
    kind: Kind,
    sql: tuple[str, ...],
    *,
    db: str = "app",
    rows: int = 1,
    expect: int = UNCHECKED,
    verify: tuple[str, int] = ("", 0),
    table: str = "t",
) -> StatementBatch:
    digest = compute_statement_digest(sql)
    return StatementBatch(segment, phase, number, db, table, kind, sql, (expect,), *verify, rows, digest)


def target_of(server: MariaDb, **changes: object) -> TargetSection:
    """The [target] section of a test server."""
    values = {"host": server.host, "port": server.port, "user": server.user, "db_type": server.name, "lease_s": 30}
    return TargetSection(**{**values, **changes})


def apply(
    target: TargetSection, window: Window, hook: Callable[[str], None] | None = None, relay: WriteAhead | None = None
) -> ApplyResult:
    """`apply_window` of a test window."""
    return apply_window(target, window.manifest(), window, hook=hook, relay=relay)


def apply_in_runs(target: TargetSection, window: Callable[[], Window]) -> None:
    """Run `apply` up to three times, because a run does not repeat every step that may lose its connection."""
    for _ in range(3):
        with contextlib.suppress(TargetUnavailable):
            apply(target, window())
            return


def at(step: str, number: int, act: Callable[[], None]) -> Callable[[str], None]:
    """A hook that acts when `step` is reached for the `number`-th time (from 1); it can be sent to another process."""
    return partial(_act_at, step, number, itertools.count(1), act)


def _act_at(step: str, number: int, passes: Iterator[int], act: Callable[[], None], passed: str) -> None:
    # `next` of a count is atomic in the interpreter, so no two threads get the same number.
    if passed == step and next(passes) == number:
        act()


def signal_me(which: signal.Signals) -> Callable[[], None]:
    """Send a signal to the calling process; in another thread, wait until the main thread has handled it."""
    return partial(_signal, which)


def _signal(which: signal.Signals) -> None:
    flag = getattr(signal.getsignal(which), "__self__", None)
    os.kill(os.getpid(), which)
    if isinstance(flag, StopFlag) and threading.current_thread() is not threading.main_thread():
        # Otherwise the other connections might apply the rest of the window first.
        wait_until(flag.is_set)


def apply_in_child(
    target: TargetSection, window: Window, hook: Callable[[str], None] | None = None, relay: WriteAhead | None = None
) -> int:
    """Start `apply` in a child process; return its pid."""
    return start_child(apply, target, window, hook, relay)


def apply_ordered_in_child(target: TargetSection, window: Window, hook: Callable[[str], None]) -> int:
    """The same in mode ordered, with a checkpoint that moves as often as possible."""
    return start_child(_apply_ordered, target, window, hook)


def _apply_ordered(target: TargetSection, window: Window, hook: Callable[[str], None]) -> None:
    modes.CHECKPOINT_S = 0.0
    apply(target, window, hook)


class Crash(Exception):
    """Stands for the end of the process: the code under test does not catch it."""


def crashing(chance: Random, share: float) -> Callable[[str], None]:
    """A hook that crashes at random in this share of all steps."""

    def hook(_step: str) -> None:
        if chance.random() < share:
            raise Crash

    return hook


def wait_until(condition: Callable[[], bool], seconds: float = 60, every: float = 0.02) -> None:
    """Check the condition `every` so many seconds; fail if it is not true in time."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(every)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"
