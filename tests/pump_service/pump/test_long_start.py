"""A pump whose index is lost says how far it is while it builds it, and gives out nothing before that."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request

import pytest
from conftest import MakePump
from pump_cluster import MemoryCluster
from pump_helpers import commit, prewrite, store, until

from binlake.errors import BinlakeError
from binlake.pumpclient import PumpReader
from binlake.wire import build
from pump_service.pump.index import Index
from pump_service.pump.server import PumpServer


class Gate:
    """An index whose writes wait until it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        write = Index.write

        def gated(index: Index, *args: object, **more: object) -> None:
            assert self.open.wait(120)
            write(index, *args, **more)

        monkeypatch.setattr(Index, "write", gated)


def test_the_port_is_open_while_a_lost_index_is_built(
    make_pump: MakePump, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    pump = make_pump()
    start = cluster.tso()
    store(pump._storage, prewrite(start), commit(start, cluster.tso()))
    last = cluster.tso()
    store(pump._storage, build.fake(last))
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
        found = reader.info()
        assert found.state == "starting"
        assert "the index is being built from the value log: file 000000.vlog of 000000.vlog" in found.last_error
        with urllib.request.urlopen(f"http://{again.addr}/status", timeout=60) as answer:
            assert json.load(answer) is not None
        with pytest.raises(BinlakeError, match="the pump is starting"):
            next(iter(reader.pull(0)))
        with pytest.raises(BinlakeError, match="the pump is starting"):
            again._storage.append(commit(start, last + 1).SerializeToString())
        with pytest.raises(BinlakeError, match="the pump is starting"):
            again._storage.collect(1, 1)
        assert cluster.history == states  # nobody was told that it is there
    finally:
        gate.open.set()
        starting.join(120)
    assert reader.info().state == "online"
    assert "being built" not in reader.info().last_error
    assert start in [begun for _, begun, _ in reader.pull(0, until_ts=last)]
    again.stop()
