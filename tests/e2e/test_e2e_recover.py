"""The complete crash scenario: finalize is killed, the source is gone for good, and the target is recovered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.killer import Killer
from support.live import LiveSource
from support.mariadb import MariaDb, rows
from support.workload import Workload, integer, text
from test_e2e_window import Make, expected, set_up, some_changes, tables_of, toml

from binlake.config import Replication
from binlake.errors import LostRange
from binlake.spark_jobs.commands.recover import recover
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.target import read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.mariadb, pytest.mark.e2e]

Model = dict[tuple[str, str], Any]


@contextmanager
def listening(addresses: list[tuple[str, int]]) -> Iterator[list[socket.socket]]:
    """Listeners at each address, which would notice a connection."""
    ears = [socket.create_server(address) for address in addresses]
    try:
        yield ears
    finally:
        for ear in ears:
            ear.close()


def count_calls(ears: list[socket.socket]) -> int:
    found = 0
    for ear in ears:
        ear.setblocking(False)
        try:
            ear.accept()[0].close()
            found += 1
        except BlockingIOError:
            continue
    return found


def land_all(ctx: StageContext, source: LiveSource) -> Bounds:
    """Land everything written so far as one window."""
    source.settle()
    planned = run_stage("plan", ctx)
    done = run_stage("land", ctx, Bounds(planned.lo, planned.hi))
    return Bounds(done.lo, done.hi)


def no_spark() -> Any:
    raise AssertionError("recovery without --roll-forward needs no Spark")


def no_lake(_: Replication) -> StageContext:
    raise AssertionError("there is no lake")


@dataclass
class Left:
    """A window that is ready for finalize, with the source's states: each `state` inside it, and `final` at its end.

    `last`: the next window, landed but not merged. `transactions`: the number of those that apply the window.
    """

    ctx: StageContext
    bounds: Bounds
    states: list[Model]
    final: Model
    last: Bounds
    transactions: int

    def from_lake(self) -> list[StageResult]:
        return recover(self.ctx.replication, lambda own: StageContext(own, "recover", no_spark))

    def from_relay(self) -> list[StageResult]:
        lake = Path(self.ctx.paths.root)
        lake.rename(lake.with_name("away"))
        try:
            return recover(self.ctx.replication, no_lake)
        finally:
            lake.with_name("away").rename(lake)

    @contextmanager
    def without_statements(self) -> Iterator[None]:
        """Hide a file of the table `statement`."""
        file = next(Path(self.ctx.paths.locate_table("statement")).glob(f"window={self.bounds.window}/*.parquet"))
        away = file.rename(file.with_suffix(".away"))
        try:
            yield
        finally:
            away.rename(file)

    def roll_forward(self) -> list[StageResult]:
        make = lambda own: StageContext(own, "recover", self.ctx.make_spark)  # noqa: E731 - a name says nothing more
        return recover(self.ctx.replication, make, roll_forward=True)


@pytest.fixture
def left(source: LiveSource, context: Make, target: dict[str, Any], tmp_path: Path) -> Left:
    """50 transactions on three tables with five DDL; one table has a second unique key, one has no key."""
    target |= {"mode": "parallel", "worker-count": 3, "txn-batch": 4}
    (tmp_path / "relay").mkdir()
    ctx = context(target=target, relay={"log-dir": str(tmp_path / "relay"), "max-file-size": 4000})
    workload, states = source.workload, []
    set_up(workload)
    workload.create_table("d", "other", [integer("id"), text("what")], ["id"])
    for number in range(25):
        if number == 12:
            workload.add_column("d", "other", integer("c", default="7"))
        more = {"c": 1} if number >= 12 else {}
        some_changes(workload, number, transactions=1)
        workload.begin().insert("d", "other", id=number, what="x", **more).commit()
        states.append(expected(workload))
    bounds = land_all(ctx, source)
    run_stage("merge", ctx, bounds)
    compacted, converted = run_stage("compact", ctx, bounds), run_stage("convert", ctx, bounds)
    ddls = converted.detail["ddl"]
    transactions = 1 + 2 * ddls + compacted.detail["segments"] + converted.detail["batches"] - ddls
    some_changes(workload, 99)
    final, last = expected(workload), land_all(ctx, source)
    hurried = ctx.replication.source.model_copy(update={"timeout_s": 0.2})
    ctx = replace(ctx, replication=ctx.replication.model_copy(update={"source": hurried}))
    return Left(ctx, bounds, states, final, last, transactions)


def assert_recovered(results: list[StageResult], server: MariaDb, hi: int, model: Model, workload: Workload) -> None:
    assert (results[-1].stage, results[-1].state, results[-1].hi) == ("recover", "recovered", hi)
    text = str(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])
    assert text.startswith(f'{{"consistent":true,"commitTS":{hi},')
    assert tables_of(workload, server) == model


POSITIONS = [("opened", 1), ("ddl_executed", 2), ("batch", 6), ("batch", 20), ("before_commit", -1)]
"""Where finalize is killed; a negative number counts from the last transaction, which moves the checkpoint.

`tests/target/relay/test_target_relay.py` tests twenty positions of one window, with the same code after the reader.
"""


@pytest.mark.parametrize(
    "positions",
    [POSITIONS, pytest.param([("batch", number) for number in (1, 13, 27)], marks=pytest.mark.soak)],
    ids=["some", "more"],
)
def test_killed_finalize_is_recovered_without_the_source(
    source: LiveSource, left: Left, mariadb: MariaDb, tmp_path: Path, positions: list[tuple[str, int]]
) -> None:
    # R-21, S3-02 S3-03 S3-04 S3-09 S3-11 S3-13 S3-20 S3-21
    config = tmp_path / "live.toml"
    config.write_text(toml(left.ctx.replication.model_dump(mode="json", by_alias=True, exclude_none=True)))
    workload, whole, hi = source.workload, left.states[-1], left.bounds.hi
    addresses = [address(pump.host) for pump in source.registry.list_pumps()] + [address(source.status_url)]
    source.vanish()
    with Killer("finalize_killer", config, left.bounds.lo, left.bounds.hi) as killer, listening(addresses) as ears:
        for place, (step, number) in enumerate(positions):
            mariadb.wipe()
            killer.kill_at(step, number if number > 0 else left.transactions + 1 + number)
            found = read_checkpoint(left.ctx.replication, source.driver.cluster_id)
            assert found is not None
            assert not found.consistent
            first, second = (left.from_lake, left.from_relay)[:: 1 if place % 2 else -1]
            assert_recovered(first(), mariadb, hi, whole, workload)
            # The next run, with PD still unreachable, does nothing.
            assert [result.state for result in second()] == ["nothing-to-do"]
            assert tables_of(workload, mariadb) == whole
        mariadb.wipe()
        killer.kill_at("batch", 24)
        half = tables_of(workload, mariadb)
        assert half not in left.states
        with left.without_statements(), pytest.raises(LostRange) as caught:
            left.from_lake()
        # S3-13: the range is named, and the target is unchanged.
        assert left.bounds.window in str(caught.value)
        assert tables_of(workload, mariadb) == half
        assert_recovered(left.roll_forward(), mariadb, left.last.hi, left.final, workload)
        # PD was asked whether it answers; no other part of the source was contacted.
        assert count_calls(ears) == 0


def address(place: str) -> tuple[str, int]:
    """Host and port of `host:port`, with or without a scheme."""
    host, _, port = place.rpartition("/")[2].rpartition(":")
    return host, int(port)
