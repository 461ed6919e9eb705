"""A pump that rebuilds a lost index reports its progress, serves no binlogs until it is done, and can be stopped."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path

import plyvel
import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump, commit, prewrite, pulled, store, until

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import BinlakeError
from binlake.pump_service.pump import follower
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.recovery import StartStopped
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build


class Gate:
    """An index whose writes wait until the gate is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        write = PumpIndex.write

        def gated(index: PumpIndex, *args: object, **more: object) -> None:
            assert self.open.wait(120)
            write(index, *args, **more)

        monkeypatch.setattr(PumpIndex, "write", gated)


def test_the_port_is_open_while_a_lost_index_is_rebuilt(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    pump = build_pump()
    start = cluster.fetch_ts()
    store(pump._storage, prewrite(start), commit(start, cluster.fetch_ts()))
    last = cluster.fetch_ts()
    store(pump._storage, build.build_fake(last))
    pump.stop()
    shutil.rmtree(pump._config.data_dir / "kv")

    gate.open.clear()
    states = list(cluster.history)
    again = PumpServer(pump._config, oracle=cluster, members=cluster)
    starting = threading.Thread(target=again.start)
    starting.start()
    try:
        until(lambda: hasattr(again, "_rpc") and hasattr(again, "_host"), "it listens")
        reader = PumpReader(again.addr, cluster.id)
        pump_info = reader.read_info()
        assert pump_info.state == "starting"
        assert "the index is being rebuilt from the value log: file 000000.vlog of 000000.vlog" in pump_info.last_error
        with urllib.request.urlopen(f"http://{again.addr}/status", timeout=60) as answer:
            assert json.load(answer) is not None
        with pytest.raises(BinlakeError, match="the pump is starting"):
            next(iter(reader.pull(0)))
        with pytest.raises(BinlakeError, match="the pump is starting"):
            again._storage.append(commit(start, last + 1).SerializeToString())
        with pytest.raises(BinlakeError, match="the pump is starting"):
            again._storage.collect(1, 1)
        assert cluster.history == states  # the pump has not announced itself yet
    finally:
        gate.open.set()
        starting.join(120)
    assert reader.read_info().state == "online"
    assert "being built" not in reader.read_info().last_error
    assert start in [begun for _, begun, _ in reader.pull(0, until_ts=last)]
    again.stop()


def fill(storage: PumpStorage, transactions: int, tso: Callable[[], int]) -> None:
    for start in [tso() for _ in range(transactions)]:
        store(storage, prewrite(start), commit(start, tso()))


def lose_index(pump: PumpServer) -> None:
    pump.stop()
    shutil.rmtree(pump._config.data_dir / "kv")


class Stopper:
    """Asks the start to stop at one of the writes of the index, and counts all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.ask = lambda: None
        self.writes = 0
        write = PumpIndex.write

        def counted(index: PumpIndex, *args: object, **more: object) -> None:
            self.writes += 1
            if self.writes == at:
                self.ask()
            write(index, *args, **more)

        monkeypatch.setattr(PumpIndex, "write", counted)


def test_a_pump_that_rebuilds_its_index_stops_when_asked(
    build_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = build_pump(gen_binlog_interval_s=600.0)
    fill(pump._storage, 200, cluster.fetch_ts)
    stored = pulled(pump._storage, 200)
    lose_index(pump)
    states = list(cluster.history)
    monkeypatch.setattr(follower, "_PUTS", 16)  # some 25 batches
    stopper = Stopper(monkeypatch, at=5)
    again = PumpServer(pump._config, oracle=cluster, members=cluster)
    stopper.ask = lambda: again.request_leave("pause")

    assert not again.start()
    assert stopper.writes <= 5 + 2  # the write in progress, and two that save the progress
    assert cluster.history == states  # the pump announced neither its start nor its end

    monkeypatch.undo()
    last = PumpServer(pump._config, oracle=cluster, members=cluster)
    assert last.start()
    assert 0 < last._storage.recovered < 400 - 3 * 16  # the last start continued where the previous one stopped
    assert pulled(last._storage, 200) == stored
    last.stop()


def test_a_start_can_be_stopped_in_the_middle_of_a_long_file(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    fill(storage, 50, count(10).__next__)
    storage.close()  # too short a file for a footer

    class Asked(Files):
        reads = 0

        def read(self, *args: object) -> bytes:
            self.reads += 1
            return super().read(*args)  # type: ignore[arg-type]

    shutil.rmtree(tmp_path / "kv")
    files = Asked()
    with pytest.raises(StartStopped):
        PumpStorage(tmp_path, files=files, stop=lambda: files.reads > 2, recover=False)
    whole = PumpStorage(tmp_path)
    assert len(pulled(whole, 50)) == 50
    whole.close()


def test_an_index_that_fails_during_the_rebuild_does_not_delay_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = PumpStorage(tmp_path)
    fill(storage, 50, count(10).__next__)
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    asked = threading.Event()

    def fail(*_: object, **__: object) -> None:
        asked.set()
        raise plyvel.IOError("no space")

    with monkeypatch.context() as failing:
        failing.setattr(PumpIndex, "write", fail)
        with pytest.raises(StartStopped):
            PumpStorage(tmp_path, stop=asked.is_set)
    whole = PumpStorage(tmp_path)
    assert len(pulled(whole, 50)) == 50
    whole.close()
