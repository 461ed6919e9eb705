"""Ratios of a pump's speed, taken in one run on one machine: what a promise of speed means where clocks differ."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked_pump import PULL, WRITE, AttackedPump, attacked_pump, pull_request, write_request
from pump_helpers import commit, prewrite

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
    # 0.2 where nothing else runs (below 5 us); each puller by itself made it five times as much.
    assert min(fed) - min(alone) < 0.6 * min(alone)
