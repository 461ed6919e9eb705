"""One seed: a random source is replicated window by window, by processes that die, are suspended and are taken over.

After each attempt, and at steps inside it, the target is compared with the source as it was at the checkpoint. An
attempt may end in an error that its fault explains; the target must never be wrong at a checkpoint, and never be
`consistent` while it differs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pymysql
from ddlworld import World
from modelerrors import SCHEMA, Crash, Wrong
from modellost import lose_row, set_back
from modelsource import Source
from modeltable import DB, SRC, State, shown_rows
from modelwindow import CLUSTER, NAME, Converter, Statements, damaged
from simulator.faults.kinds import Kind
from support.mariadb import MariaDb

from binlake.common.sql import LATER, TABLES, Dialect
from binlake.config.servers import TargetSection
from binlake.errors import (
    CheckpointConflict,
    Drift,
    Fenced,
    ImmutableWindow,
    LeaseHeld,
    TargetBusy,
    TargetRefused,
    TargetUnavailable,
)
from binlake.target import apply_window, read_position
from binlake.target.claim.checkpoint import Checkpoint
from binlake.target.claim.progress import TargetProgress, read_progress
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables

_MODES = ("atomic", "atomic", "parallel", "parallel", "ordered", "auto")
_ATTEMPTS = 60
Hook = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """The parameters of a seed; smaller ones show the same failure more simply.

    `bytewise`: the source compares by bytes although its definitions do not say so, so the target cannot hold its keys.
    """

    transactions: int = 14
    faults: bool = True
    ddl: bool = True
    bytewise: bool = False


@dataclass
class Model:
    """The server, and a separate connection that checks it. Used for many seeds."""

    server: MariaDb
    dialect: Dialect = "mariadb"
    happened: Counter[str] = field(default_factory=Counter)
    looking: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.reader = self.server.connect()
        self.target = TargetSection(
            db_type=self.dialect, host=self.server.host, port=self.server.port, user=self.server.user,
            worker_count=2, lease_s=600,
        )  # type: ignore[call-arg]  # fmt: skip
        self.session = TargetSession(self.target)
        create_tables(self.session, SCHEMA)

    def close(self) -> None:
        """End the connections."""
        self.reader.close()
        self.session.close()

    def run(self, seed: int, shape: Shape | None = None) -> None:
        """Run one seed. Raises Wrong, or an error of apply that no fault explains."""
        shape = shape or Shape(bytewise=seed % 16 == 15)
        self._clear()
        connection = self.server.connect(autocommit=False)
        try:
            source = history(connection, Random(f"source {seed}"), shape, self.dialect)
            Scenario(self, source, Random(f"run {seed}"), shape).run()
        finally:
            connection.close()

    def _clear(self) -> None:
        with self.reader.cursor() as cursor:
            for table in (*TABLES, *LATER):
                cursor.execute(f"DELETE FROM {SCHEMA}.{table}")
            cursor.execute(f"DROP DATABASE IF EXISTS {DB}")
            cursor.execute(f"DROP DATABASE IF EXISTS {SRC}")
            cursor.execute(f"CREATE DATABASE {SRC}")


def history(connection: Any, random: Random, shape: Shape, dialect: Dialect = "mariadb") -> Source:
    """A source with one to three tables and their history, as its server accepted it."""
    source = Source(connection, random, bytewise=shape.bytewise, dialect=dialect)
    for number in range(random.choice((1, 2, 2, 3))):
        kinds = {"kinds": ("text",)} if shape.bytewise else {}
        source.create(f"t{number}", 1 if shape.bytewise else random.choice((0, 1, 1, 2, 2, 3)), **kinds)  # type: ignore[arg-type]
    for _ in range(shape.transactions):
        source.transaction()
        if shape.ddl and not shape.bytewise and random.random() < 0.12:
            source.alter()
    if source.on_server() != source.states[-1][1]:
        raise Wrong(f"the model is not what its server has: {source.on_server()} {source.states[-1][1]}")
    return source


class Scenario:
    """The windows of one source, and the faults of the processes that apply them."""

    def __init__(self, model: Model, source: Source | World, random: Random, shape: Shape) -> None:
        self.model = model
        self.source = source
        self.random = random
        self.shape = shape
        self.converter = Converter(source, random)
        self.pinned: dict[str, Statements] = {}
        self.ends = source.ends
        # Across several segments, nothing shows that a later window mistakes one row for another
        # (docs/understand/apply.md).
        self.least = self.ends[-1] if shape.bytewise else 0

    def run(self) -> None:
        """Replicate everything, under all faults. Raises Wrong."""
        for _ in range(_ATTEMPTS):
            if self.is_over():
                return
            try:
                self.attempt()
            except (Drift, TargetRefused):
                # The server itself refuses a table without a key but with nullable unique keys.
                if not self.shape.bytewise:
                    raise
                self.model.happened["refused"] += 1
                self.check()
                return
        raise Wrong("the windows do not end")

    def is_over(self) -> bool:
        """Whether everything is replicated."""
        checkpoint, progress = self.standing()
        opened = progress is not None and progress.is_open
        return not opened and checkpoint is not None and checkpoint.commit_ts >= self.ends[-1]

    def attempt(self) -> None:
        """One run of finalize, with or without a fault."""
        fault = self.random.choice(_FAULTS) if self.shape.faults and self.random.random() < 0.5 else None
        statements = self.next_window()
        if self.shape.faults and self.random.random() < 0.3:
            self.changed(statements)
        if fault is not None:
            fault(self, statements)
        else:
            self.apply(statements)
        self.check()

    def next_window(self) -> Statements:
        """The open window, as it was sealed, or a new one after the checkpoint, of any length and mode."""
        target = self.target()
        position = read_position(target, NAME, CLUSTER)
        if position.opened is not None:
            return self.pinned[str(position.opened.manifest)]
        lo = position.commit_ts or 0
        later = [ts for ts in self.ends if ts > max(lo, self.least - 1)]
        hi = later[min(int(self.random.expovariate(0.15)), len(later) - 1)]
        statements = self.converted(lo, hi, target, position.forms)
        self.pinned[statements.manifest.compute_digest()] = statements
        return statements

    def converted(self, lo: int, hi: int, target: TargetSection, forms: str) -> Statements:
        """The window (lo, hi], or the largest possible part of it."""
        return self.converter.convert(lo, hi, target, forms)

    def target(self) -> TargetSection:
        """The target under a configuration that changes all the time."""
        mode = self.random.choice([mode for mode in _MODES if mode != "ordered" or not self.shape.bytewise])
        return self.model.target.model_copy(update={
            "mode": mode,
            "safe_mode": self.random.choice(("always", "auto", "auto", "never")),
            "worker_count": self.random.choice((1, 2, 3)),
            "batch": self.random.choice((1, 2, 3, 50)),
            "multiple_rows": self.random.random() < 0.5,
            "conflict_strategy": self.random.choice(("causality", "flush")),
            "max_segment_rows": 8 if mode == "auto" else 1000,
        })  # fmt: skip

    def apply(self, statements: Statements, hook: Hook | None = None, target: TargetSection | None = None) -> None:
        """Like finalize: check what the manifest pins, then apply."""
        apply_window(target or self.target(), statements.manifest, statements.checked(statements.manifest), hook=hook)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the target equals the source at a checkpoint between windows, and says so. Raises Wrong."""
        checkpoint, progress = self.standing()
        if checkpoint is None:
            return
        opened = progress is not None and progress.is_open
        if checkpoint.consistent and opened:
            raise Wrong("consistent while a window is open")
        if opened or progress is None:
            return
        behind = checkpoint.commit_ts < progress.exit_ts
        if checkpoint.consistent == behind:
            raise Wrong(f"consistent={checkpoint.consistent} at {checkpoint.commit_ts}, exit_ts {progress.exit_ts}")
        if not behind:
            self.compare(checkpoint.commit_ts)

    def glance(self, atomic: bool) -> None:
        """Check during an apply: `consistent` is never wrong, and readers of atomic segments see a snapshot (R-58)."""
        checkpoint, progress = self.standing()
        if checkpoint is None or progress is None:
            return
        if checkpoint.consistent and progress.is_open:
            raise Wrong("consistent while a window is open")
        if atomic and progress.is_open and not progress.ddl_state and not self._in_ledger(progress):
            self.compare(checkpoint.commit_ts)
            self.model.happened["snapshot"] += 1

    def standing(self) -> tuple[Checkpoint | None, TargetProgress | None]:
        """The target's own report of its state, in one read."""
        with self.model.looking, self.model.reader.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute(f"SELECT checkPoint FROM {SCHEMA}.checkpoint")
            found: Any = cursor.fetchone()
            progress = read_progress(_Reader(cursor), SCHEMA, NAME)
            cursor.execute("COMMIT")
        return Checkpoint.from_json(found[0]) if found else None, progress

    def compare(self, commit_ts: int) -> None:
        """Raise Wrong if the target differs from the source as it was at `commit_ts`."""
        expected: Any = self.source.at(commit_ts)
        tables = self.converter.tables(commit_ts)
        with self.model.looking, self.model.reader.cursor() as cursor:
            shown: State = {table.name: shown_rows(cursor, DB, table) for table in tables}
        if shown != expected:
            names = [name for name in expected if shown.get(name) != expected[name]]
            raise Wrong(f"at {commit_ts}: {[(n, shown.get(n), 'is not', expected[n]) for n in names]}")

    # -- faults -----------------------------------------------------------------------------------------------------

    def crash(self, statements: Statements) -> None:
        """The process dies at a step."""
        with suppress(Crash):
            self.faulty(statements, self._die)
        self.model.happened[Kind.APPLY_DIES] += 1

    def killed(self, statements: Statements) -> None:
        """All connections break at a step."""
        with suppress(TargetUnavailable, TargetBusy, Fenced):
            self.faulty(statements, self._kill)
        self.model.happened[Kind.CONNECTIONS_KILLED] += 1

    def woken(self, statements: Statements) -> None:
        """The process is suspended at a step, another one takes over for some windows, then the first one resumes."""
        with suppress(TargetUnavailable, TargetBusy, Fenced, LeaseHeld):
            self.faulty(statements, self._succeed)
        self.model.happened[Kind.LATE_OWNER] += 1

    def changed(self, found: Statements) -> None:
        """The lake has other statements than the sealed ones, or another seal than the open window's."""
        other = damaged(found)
        if other.digest() == found.digest():
            return  # only DDL
        opened = self.standing()[1]
        with suppress(ImmutableWindow):
            self.apply(other)
            raise Wrong("changed statements were applied")
        if opened is None or not opened.is_open:
            return
        with suppress(CheckpointConflict):
            again = Statements(other.plans, other.written)
            again.manifest = replace(found.manifest, statement=again.digest())
            self.apply(again)
            raise Wrong("a window was finished with another manifest than it was opened with")
        self.model.happened[Kind.SEAL_CHANGED] += 1
        done = self._in_ledger(opened)
        if not any((b.segment, int(b.phase)) == place for place in done for b in other.written):
            return
        try:
            # Changed between the check and the read.
            atomic = self.model.target.model_copy(update={"mode": "atomic"})
            apply_window(atomic, found.manifest, other)
        except CheckpointConflict:
            self.model.happened["changed after the ledger was checked"] += 1
            return
        raise Wrong("statements changed after some of them were applied, and no check noticed it")

    def faulty(self, statements: Statements, act: Callable[[], None]) -> None:
        """A run with a random fault."""
        target = self.target()
        atomic = target.mode == "atomic" and not any(plan.ordered for plan in statements.plans)
        self.apply(statements, self.at_step(act, atomic), target)

    def at_step(self, act: Callable[[], None], atomic: bool) -> Hook:
        """Call `act` at one random step of the run, and check the target at another."""
        steps, number = iter(range(10_000)), min(int(self.random.expovariate(0.12)), 60)
        look = self.random.randrange(max(number, 1))
        lock = threading.Lock()

        def hook(_step: str) -> None:
            with lock:
                step = next(steps)
            if step == look:
                self.glance(atomic)
            if step == number:
                act()

        return hook

    def _die(self) -> None:
        raise Crash

    def _kill(self) -> None:
        with self.model.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE id NOT IN (CONNECTION_ID(), %s, %s, %s)"
                           " AND user = 'root'", (self.model.reader.thread_id(), self.model.session.connection_id,
                                                  self.source.connection_id))  # fmt: skip
            for (session,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):
                    cursor.execute("KILL %s", (session,))

    def _succeed(self) -> None:
        with self.model.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE {SCHEMA}.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
        for _ in range(self.random.choice((1, 2, 3, 4))):
            if not self.is_over():
                self.apply(self.next_window())

    def _in_ledger(self, opened: TargetProgress) -> set[tuple[int, int]]:
        with self.model.looking, self.model.reader.cursor() as cursor:
            cursor.execute(
                f"SELECT segment, phase FROM {SCHEMA}.binlake_ledger WHERE segment = %s AND lo = %s AND hi = %s",
                (opened.segment, opened.open_lo, opened.open_hi),
            )
            return {(int(segment), int(phase)) for segment, phase in cursor.fetchall()}


class _Reader(TargetSession):
    """A Session that reads with one open cursor: one snapshot for everything it reads."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def fetch_rows(self, sql: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql, arguments)
        return list(self._cursor.fetchall())


_FAULTS = (
    Scenario.crash, Scenario.crash, Scenario.crash, Scenario.killed, Scenario.woken, Scenario.woken, set_back,
    lose_row,
)  # fmt: skip
