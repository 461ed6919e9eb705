"""What happens to a world between its rounds: servers, feeder and pump stop cleanly or not, a window dies."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from unittest import mock

from support.feeder_killer import STEPS
from support.feeding import FedCluster
from support.killer import Killer
from support.mariadb import MariaDb

from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.stages import finalize
from binlake.target import apply_window
from deploy.local.ports import free_port
from deploy.local.process import Child

_REACHED = [step for step in STEPS if step.split()[1] in ("prewrites", "outcome", "commit", "stored", "read")]
"""The steps of a feeder that come at least once wherever it begins; transactions may all go together."""

_STARTS_S = 60.0


class Crash(BaseException):
    """The process of the windows dies."""


def _restart_source(source: MariaDb, _target: MariaDb, _cluster: FedCluster) -> None:
    source.restart()


def _kill_source(source: MariaDb, _target: MariaDb, _cluster: FedCluster) -> None:
    source.kill9()
    source.start()


def _restart_target(_source: MariaDb, target: MariaDb, _cluster: FedCluster) -> None:
    target.restart()


def _kill_target(_source: MariaDb, target: MariaDb, _cluster: FedCluster) -> None:
    target.kill9()
    target.start()


def _restart_feeder(_source: MariaDb, _target: MariaDb, cluster: FedCluster) -> None:
    cluster.stop_feeder()
    cluster.start_feeder(bool)


def _restart_pump(_source: MariaDb, _target: MariaDb, cluster: FedCluster) -> None:
    name = next(iter(cluster.pumps))
    cluster.stop_pump(name)
    cluster.start_pump(name)


def _restart_placement_driver(_source: MariaDb, _target: MariaDb, cluster: FedCluster) -> None:
    cluster.restart_driver()


def kill_feeder(cluster: FedCluster, draw: Random, run: Callable[[], None]) -> None:
    """Stop the feeder, `run` the source on, kill another feeder at a drawn step, and start it again."""
    cluster.stop_feeder()
    run()
    with Killer("feeder_killer", cluster.write_settings()) as killer:
        killer.kill_at(draw.choice(_REACHED), 1)
    cluster.start_feeder(bool)


def kill_pump(cluster: FedCluster, _draw: Random, run: Callable[[], None]) -> None:
    """Let a pump's own process serve while `run` runs the source on, kill it, and start the pump again."""
    name = next(iter(cluster.pumps))
    cluster.stop_pump(name)
    command = [
        sys.executable, "-m", "binlake.cli", "pump", "--node-id", name, "--addr", f"127.0.0.1:{free_port()}",
        "--data-dir", str(cluster.folder / name), "--pd-urls", cluster.driver.url,
        "--status-url", f"http://{cluster.status_addr}", "--stop-write-at-available-space", "1MiB",
    ]  # fmt: skip
    process = Child("pump", command, cluster.folder / "killed").start()
    try:
        process.wait_until(lambda: any(one.state == "online" for one in cluster.registry.list_pumps()), _STARTS_S)
        run()
    finally:
        process.kill9()
    cluster.start_pump(name)


FAULTS: Mapping[str, Callable[[MariaDb, MariaDb, FedCluster], None]] = {
    "the source restarts": _restart_source,
    "the source is killed": _kill_source,
    "the target restarts": _restart_target,
    "the target is killed": _kill_target,
    "the feeder restarts": _restart_feeder,
    "a pump restarts": _restart_pump,
    "the placement driver restarts": _restart_placement_driver,
}
"""What may happen between two rounds of a world, by name."""


@contextmanager
def crashing(draw: Random) -> Iterator[None]:
    """Inside, the process of a window dies at a drawn event of the lake or a drawn step at the target, if it comes."""
    when = draw.choice(("before", "after"))
    record, calls, number = WindowLog.record_together, itertools.count(1), draw.randint(1, 9)

    def record_or_die(log: WindowLog, events: Sequence[WindowEvent]) -> None:
        mine = next(calls) == number
        if mine and when == "before":
            raise Crash
        record(log, events)
        if mine:
            raise Crash

    steps, last = itertools.count(1), draw.randint(1, 60)

    def die_at_step(_: str) -> None:
        if next(steps) == last:
            raise Crash

    with (
        mock.patch.object(WindowLog, "record_together", record_or_die),
        mock.patch.object(finalize, "apply_window", partial(apply_window, hook=die_at_step)),
    ):
        yield
