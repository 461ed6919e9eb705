"""Ratios of a pump's speed, taken in one run on one machine: what a promise of speed means where clocks differ."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacked_pump import PULL, WRITE, AttackedPump, attacked_pump, pull_request, write_request
from pump_helpers import commit, prewrite, until

from bench import pump_load
from binlake import tso
from binlake.rpc import Channel

_AT_ONCE = 64
_TRANSACTIONS = 6000


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[AttackedPump]:
    with attacked_pump(tmp_path) as found:
        yield found


def write(pump: AttackedPump, transactions: int) -> float:
    """Write so many, 64 calls at once; us of CPU of the pump a write."""
    now = tso.compose(int(time.time() * 1000)) - 4 * transactions
    before = pump.cpu_s()
    with Channel(pump.address) as channel:
        pending = deque()
        for at in range(transactions):
            start_ts = now + 2 * at
            for binlog in (prewrite(start_ts, bytes(100)), commit(start_ts, start_ts + 1)):
                pending.append(channel.start(WRITE, write_request(binlog.SerializeToString()), 60))
                if len(pending) >= _AT_ONCE:
                    pending.popleft().result()
        for call in pending:
            call.result()
    return (pump.cpu_s() - before) / (2 * transactions) * 1e6


@contextlib.contextmanager
def pullers(pump: AttackedPump, count: int, after_ts: int) -> Iterator[list[int]]:
    """So many that take all after `after_ts`; the bytes each has taken."""
    taken = [0] * count
    with contextlib.ExitStack() as stack:
        channels = [stack.enter_context(Channel(pump.address)) for _ in range(count)]
        streams = [stack.enter_context(channel.stream(PULL, pull_request(after_ts))) for channel in channels]

        def take(number: int) -> None:
            with contextlib.suppress(Exception):  # it ends with its channel
                for messages in streams[number].batches():
                    taken[number] += sum(map(len, messages))

        threads = [threading.Thread(target=take, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        yield taken
        for channel in channels:
            channel.close()
        for thread in threads:
            thread.join(60)


def test_ten_pullers_at_the_tail_cost_a_writer_little(pump: AttackedPump) -> None:
    write(pump, 1000)
    alone, fed = [], []
    for _ in range(2):
        alone.append(write(pump, _TRANSACTIONS))
        with pullers(pump, 10, tso.compose(int(time.time() * 1000)) - 4 * _TRANSACTIONS) as taken:
            fed.append(write(pump, _TRANSACTIONS))
        assert min(taken) > 0
    print(json.dumps({"us a write": alone, "beside ten pullers": fed}))
    # 0.2 to 0.33 on a busy machine; when each puller read for itself it was five times the whole write.
    assert min(fed) - min(alone) < 0.6 * min(alone)


def writer(clock: Iterator[int], size: int) -> Iterator[bytes]:
    """Requests of P and C by turns."""
    value = os.urandom(size)
    while True:
        start_ts, commit_ts = next(clock), next(clock)
        yield write_request(prewrite(start_ts, value).SerializeToString())
        yield write_request(commit(start_ts, commit_ts).SerializeToString())


def loaded(pump: AttackedPump, writers: int, size: int, clock: Iterator[int], seconds: float) -> pump_load.Load:
    return pump_load.run(pump.address, WRITE, [writer(clock, size) for _ in range(writers)], seconds)


def best_of(rounds: int, ratio: Callable[[], float], enough: Callable[[float], bool]) -> list[float]:
    """Ratios until one is good enough: what else runs on the machine may spoil a round, not all of them."""
    found = []
    for _ in range(rounds):
        found.append(ratio())
        if enough(found[-1]):
            break
    print(json.dumps({"ratios": [round(one, 2) for one in found]}))
    return found


def fresh_clock() -> Iterator[int]:
    return itertools.count(tso.compose(int(time.time() * 1000)) - (1 << 34))


@pytest.mark.parametrize(("share", "limit"), [(0.5, 8), pytest.param(0.99, 3, marks=pytest.mark.soak)])
def test_a_write_takes_a_small_multiple_of_a_bare_one(
    pump: AttackedPump, tmp_path: Path, share: float, limit: float
) -> None:
    # S0-25: beside other tests the slowest of a hundred tells of the machine, so CI looks at the middle one
    clock = fresh_clock()

    def ratio() -> float:
        bare = pump_load.append_times(tmp_path / "floor", 4096, 0.7)
        return loaded(pump, 8, 1024, clock, 1.0).percentile(share) / bare.percentile(share)

    assert min(best_of(8, ratio, lambda found: found <= limit)) <= limit


def pull_for_ever(address: str) -> None:
    """A puller at full speed, of which only what it costs the pump is to count."""
    os.nice(19)
    while True:
        with Channel(address) as channel, channel.stream(PULL, pull_request(0)) as stream:
            until = time.monotonic() + 1
            for _ in stream.batches():
                if time.monotonic() > until:
                    break


@pytest.mark.parametrize("least", [0.5, pytest.param(0.7, marks=pytest.mark.soak)])
def test_writers_keep_most_of_their_rate_beside_a_pull_at_full_speed(pump: AttackedPump, least: float) -> None:
    # S0-52
    clock = fresh_clock()
    loaded(pump, 64, 200, clock, 2.0)  # something to pull

    def ratio() -> float:
        alone = loaded(pump, 64, 200, clock, 1.0)
        puller = multiprocessing.get_context("spawn").Process(target=pull_for_ever, args=(pump.address,), daemon=True)
        puller.start()
        try:
            until(lambda: pump.connections() > 0, "it pulls")
            return loaded(pump, 64, 200, clock, 1.0).rate / alone.rate
        finally:
            puller.kill()
            puller.join()
            until(lambda: pump.connections() == 0, "it is gone")

    assert max(best_of(8, ratio, lambda found: found >= least)) >= least
