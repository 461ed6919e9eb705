"""A drawn history in a lake with a target, mirrors and relay files, and the faults of its storage."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from unittest import mock

from deltalake.exceptions import DeltaError
from history import History, plain, shown
from lakehouse import Lakehouse, Source
from mirrored import read_mirrors
from pyarrow.lib import ArrowException
from structlog.testing import capture_logs
from support.mariadb import MariaDb, execute, rows
from support.workload import Txn, integer, text

from binlake.audit.audit import Audit
from binlake.errors import BinlakeError, CheckpointMoved, LostRange
from binlake.lake import controlrows
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.runner import run_landed
from binlake.spark_jobs.stages import finalize
from binlake.target import apply_window
from binlake.target.commands.checkpoint import CheckpointCommand

CLUSTER = 7
DERIVED = ("mutation", "ddl", "change", "statement")
DB = "shop"


def draw_history(draw: Random) -> History:
    """A window more than there are faults, with rows and DDL of two or three tables."""
    history = History()
    work = history.workload
    work.create_database(DB)
    names = ["item", "note"]
    history.did(work.create_table(DB, "item", [integer("id"), text("v")], ["id"]))
    history.did(work.create_table(DB, "note", [integer("id"), text("v")], ["id"]))
    numbers = itertools.count(1)
    for window in range(1 + len(FAULTS)):
        for _ in range(draw.randint(1, 5)):
            _draw_change(history, draw, names, numbers)
        if window == 1:
            names.append("late")
            history.did(work.create_table(DB, "late", [integer("id"), text("v")], ["id"]))
        history.cut()
    return history


def _draw_change(history: History, draw: Random, names: Sequence[str], numbers: Iterator[int]) -> None:
    work, name = history.workload, draw.choice(names)
    kind = draw.choice(("rows", "rows", "rows", "rows", "column", "truncate"))
    if kind == "truncate":
        history.did(work.truncate(DB, name))
        return
    if kind == "column":
        history.did(work.add_column(DB, name, integer(f"c{next(numbers)}", default=str(draw.randint(0, 9)))))
        return
    txn: Txn = work.begin()
    for row in draw.sample(work.rows[DB, name], min(len(work.rows[DB, name]), 2)):
        if draw.random() < 0.5:
            txn.delete(DB, name, **row)
        else:
            txn.update(DB, name, dict(row), v=f"changed {next(numbers)}")
    for _ in range(draw.randint(1, 6)):
        number = next(numbers)
        txn.insert(DB, name, id=number, v=f"row {number}")
    history.did(txn.commit())


class Crash(BaseException):
    """The process of the windows dies."""


class StorageWorld:
    """`happened`: what was drawn, and the stops, for a person who looks at a failed seed."""

    def __init__(self, root: Path, server: MariaDb, draw: Random) -> None:
        execute(server, f"DROP DATABASE IF EXISTS {DB}", "DROP DATABASE IF EXISTS tidb_binlog")
        self.server, self.draw, self.history = server, draw, draw_history(draw)
        self.happened: list[str] = []
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        self.config = {
            "target": {"db-type": server.name, **address}, "mirror": {"enabled": True},
            "relay": {"log-dir": str(root / "relay")},
        }  # fmt: skip
        (root / "relay").mkdir()
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(self.history.workload), self.config)
        cuts = self.history.cuts
        self.windows = [Bounds(lo, hi) for lo, hi in zip([0, *cuts], cuts, strict=False)]
        self.root = Path(self.lakehouse.context().paths.root)

    def land(self, window: Bounds) -> None:
        self.lakehouse.land_only(window.lo, window.hi)

    def run(self, window: Bounds) -> None:
        """Run merge and the sinks, as a new process would. Raises what a user would see."""
        controlrows._cached.clear()
        run_landed(self.lakehouse.context(), window)

    def stops(self, window: Bounds) -> BinlakeError | None:
        """The error of a run that must say what is wrong, where, and what to do."""
        stop: BinlakeError | None = None
        try:
            with capture_logs():  # a full disk has no space for the output of a test either
                self.run(window)
        except BinlakeError as error:
            stop = error
            self.happened.append(f"{type(error).__name__}: {error}")
        except Crash:
            self.happened.append("a crash")
        assert stop is None or (stop.hint and (stop.where or "/" in stop.message)), self.happened
        return stop

    def find_differences(self, window: Bounds, *, damaged: bool = False) -> list[str]:
        """What target and mirrors lack of the source at the window's end, or have beyond it.

        `damaged`: a mirror that audits refuse is no difference. Readers of its files are not warned before
        a window changes the table again.
        """
        state = [tables for commit_ts, tables in self.history.states if commit_ts <= window.hi][-1]
        source = {name: plain(data) for name, data in state.items()}
        mirrors = read_mirrors(self.lakehouse.context())
        return [
            f"{what} {name}: {len(had.get(name, []))} rows, at the source {len(source.get(name, []))}"
            for what, had in (("target", shown(self.server)), ("mirror", mirrors))
            for name in source.keys() | had.keys()
            if had.get(name, []) != source.get(name, [])
            and not (damaged and what == "mirror" and self.is_refused_by_audits(name, window.hi))
        ]

    def is_refused_by_audits(self, name: tuple[str, str], ts: int) -> bool:
        """Whether an audit of the table as of `ts` says that it cannot answer."""
        context = self.lakehouse.context()
        try:
            Audit(context.paths, context.rules, context.windows).read_table_as_of(*name, ts)
        except LostRange:
            return True
        return False

    def own_row(self) -> tuple[int, str]:
        (row,) = rows(self.server, "SELECT clusterID, checkPoint FROM tidb_binlog.checkpoint")
        return row[0], row[1]

    def command(self, action: str) -> None:
        """Run `binlake checkpoint ACTION`."""
        target = self.lakehouse.context().replication.require_sql_target()
        file = self.root.parent / "r.toml"
        file.write_text(
            f'name = "demo"\n[lake]\npath = "{self.lakehouse.root}"\n[target]\ndb-type = "{target.db_type}"\n'
            f'host = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\n'
        )
        parser, command = argparse.ArgumentParser(), CheckpointCommand()
        command.add_arguments(parser)
        asked = [action, "--replication", str(file), "--cluster-id", str(CLUSTER)]
        assert command.run(parser.parse_args(asked)) == 0


@contextmanager
def at_event(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Inside, `act` is called before the `number`-th write of the lake's window log, if it comes."""
    record, calls = WindowLog.record_together, itertools.count(1)

    def act_and_record(log: WindowLog, events: Sequence[WindowEvent]) -> None:
        if next(calls) == number:
            act()
        record(log, events)

    with mock.patch.object(WindowLog, "record_together", act_and_record):
        yield


@contextmanager
def crashing_at_step(number: int) -> Iterator[None]:
    """Inside, the process dies at the `number`-th step at the target, if it comes."""
    steps = itertools.count(1)

    def die(_: str) -> None:
        if next(steps) == number:
            raise Crash

    with mock.patch.object(finalize, "apply_window", partial(apply_window, hook=die)):
        yield


@contextmanager
def full_disk() -> Iterator[Callable[[int], None]]:
    """Yields what makes the disk full for files beyond a size, whoever writes them: Python, Arrow or delta-rs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill_disk(world: StorageWorld, window: Bounds) -> None:
    """The disk is full from a drawn moment on, for files beyond a drawn size; then there is space again."""
    size, number = world.draw.choice((0, 100, 1000, 3000, 10_000)), world.draw.randint(1, 6)
    world.happened.append(f"full disk beyond {size} bytes at event {number}")
    with full_disk() as fill:
        with at_event(number, lambda: fill(size)):
            world.stops(window)
        world.stops(window)


def _cut(file: Path, draw: Random) -> None:
    os.truncate(file, draw.randrange(file.stat().st_size))


def _scribble(file: Path, draw: Random) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(draw.randrange(size))
        opened.write(draw.randbytes(draw.randint(1, 64)))
        opened.truncate(size)


DAMAGES: Mapping[str, Callable[[Path, Random], None]] = {
    "empty": lambda file, _: file.write_bytes(b"") and None,
    "cut": _cut,
    "lost": lambda file, _: file.unlink(),
}


def _damage(
    world: StorageWorld, window: Bounds, pattern: str, damages: Mapping[str, Callable[[Path, Random], None]]
) -> None:
    draw, how = world.draw, world.draw.choice(sorted(damages))
    number = draw.choice((0, 0, 1, 2, 4))
    damaged: list[tuple[Path, bytes]] = []

    def damage() -> None:
        files = sorted(world.root.rglob(pattern), key=lambda file: (file.stat().st_mtime_ns, file))
        # Most likely one of the newest: a power cut leaves such.
        file = files[-min(len(files), int(draw.expovariate(0.4)) + 1)]
        damaged.append((file, file.read_bytes()))
        damages[how](file, draw)
        world.happened.append(f"{how}: {file} at event {number}")

    def damage_and_die() -> None:
        damage()
        raise Crash  # a power cut, or a disk that failed, ends the process as well

    if number == 0:
        damage()
    with at_event(number, damage_and_die):
        error = world.stops(window)
    if number and damaged:
        error = world.stops(window)
    if error is None and damaged:
        with suppress(BinlakeError, DeltaError, OSError, ArrowException):  # the mirrors are read by delta-rs itself
            differences = world.find_differences(window, damaged=True)
            assert differences == [], (differences, world.happened)
        error = world.stops(window)
    for file, content in damaged:
        if how != "lost" or not file.exists():
            file.write_bytes(content)
            continue
        # Another commit took its place: only where rows are derived again and counted against their seal, or in the
        # log of windows, after whose newest events a window lands again.
        assert file.parent.parent.name in (*DERIVED, "window"), world.happened
        world.land(window)


def damage_commit(world: StorageWorld, window: Bounds) -> None:
    """A commit file of a Delta table is emptied, cut or lost, then restored from a copy."""
    _damage(world, window, "_delta_log/*.json", DAMAGES)


def damage_data(world: StorageWorld, window: Bounds) -> None:
    """A Parquet file is damaged anywhere, then restored from a copy."""
    _damage(world, window, "*.parquet", DAMAGES | {"scribbled": _scribble})


def move_checkpoint(world: StorageWorld, window: Bounds) -> None:
    """The checkpoint row is moved by another hand, then set back, or adopted if that repeats rows only."""
    own = world.own_row()
    later = [one.hi for one in world.windows if one.hi > window.lo]
    to = "UPDATE tidb_binlog.checkpoint SET checkPoint = JSON_SET(checkPoint, '$.commitTS', {})"
    moves = {
        "ahead": to.format(max(later[0], json.loads(own[1])["commitTS"] + 1)),
        "far ahead": to.format(later[-1] + 9),
        "behind": to.format(1),
        "gone": "DELETE FROM tidb_binlog.checkpoint",
        "of another cluster": "UPDATE tidb_binlog.checkpoint SET clusterID = clusterID + 1",
    }
    move = world.draw.choice(sorted(moves))
    execute(world.server, moves[move])
    world.happened.append(f"the checkpoint is {move}")
    before = shown(world.server)
    for _ in range(2):
        assert isinstance(world.stops(window), CheckpointMoved), world.happened
    assert shown(world.server) == before, world.happened
    execute(
        world.server,
        "DELETE FROM tidb_binlog.checkpoint",
        f"INSERT INTO tidb_binlog.checkpoint VALUES ({own[0]}, '{own[1]}')",
    )


FAULTS: Mapping[str, Callable[[StorageWorld, Bounds], None]] = {
    "full disk": fill_disk,
    "damaged commit": damage_commit,
    "damaged data": damage_data,
    "moved checkpoint": move_checkpoint,
}


def run_history(world: StorageWorld) -> list[str]:
    """Run all windows, each but the first with another fault; returns what differs at the end."""
    draw = world.draw
    faults = draw.sample(sorted(FAULTS), len(FAULTS))
    for window, fault in zip(world.windows, ["", *faults], strict=True):
        world.land(window)
        if fault:
            if draw.random() < 0.3:
                with crashing_at_step(draw.randint(1, 12)):
                    world.stops(window)
            FAULTS[fault](world, window)
        if not fault or draw.random() < 0.7:  # else the next window's run ends this one
            world.run(window)
    world.run(world.windows[-1])
    return world.find_differences(world.windows[-1])
