"""The embedded placement driver as its clients see it: PD's protocol, an ordinary etcd client, kill -9."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.certificates import Authority

from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus, PdClient
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.pump_service.pd import PlacementDriver


@pytest.mark.long
def test_concurrent_clients_never_share_a_timestamp(tmp_path: Path) -> None:  # S0-16
    with PlacementDriver(tmp_path) as driver:
        taken: list[list[tuple[int, int]]] = [[] for _ in range(4)]

        def take(mine: list[tuple[int, int]]) -> None:
            client, draw = PdClient([driver.url]), random.Random(1)
            done = 0
            while done < 10_000:
                count = draw.choice((1, 1, 10, 100))
                mine.append((client.fetch_ts(count), count))
                done += count
            client.close()

        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for mine in taken:
        assert all(last - count >= before for (before, _), (last, count) in itertools.pairwise(mine))
    ranges = sorted((last - count + 1, last) for mine in taken for last, count in mine)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_the_cluster_id_is_generated_stored_and_checked(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path / "a", cluster_id=6791641053252586769) as driver:
        assert PdClient([driver.url]).fetch_cluster_id() == 6791641053252586769
        with pytest.raises(Permanent, match="cluster id 6791641053252586769, expected 5"):
            PdClient([driver.url], cluster_id=5).fetch_ts()
    with pytest.raises(ConfigError, match="belongs to cluster 6791641053252586769"):
        PlacementDriver(tmp_path / "a", cluster_id=7)


def test_a_second_process_on_the_directory_is_refused(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path), pytest.raises(ConfigError, match="another placement driver"):
        PlacementDriver(tmp_path)


def test_an_unreachable_pd_is_reported_with_its_url() -> None:
    with pytest.raises(SourceUnavailable, match=r"PD cannot be reached.*pd-urls=http://127.0.0.1:1"):
        PdClient(["http://127.0.0.1:1"], timeout_s=0.3).fetch_cluster_id()


def _spawn(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "binlake.cli", "pd", "--addr", "127.0.0.1:0", "--data-dir", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            return process, line.split()[1]
    raise AssertionError("the placement driver did not start")


@pytest.mark.long
def test_kill_minus_9_loses_no_answered_write_and_repeats_no_timestamp(tmp_path: Path) -> None:  # S0-16
    last, written = 0, 0
    for _ in range(3):
        process, url = _spawn(tmp_path)
        try:
            pd, registry = PdClient([url]), NodeRegistry(EtcdClient([url]))
            if written:
                (found,) = registry.list_pumps()
                assert found.max_commit_ts == written
            for _ in range(20):
                taken = pd.fetch_ts()
                assert taken > last
                last = taken
                registry.put_pump(NodeStatus("p1", "h:1", "online", max_commit_ts=last))
                written = last
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


_AETCD = """
import asyncio, sys
import aetcd

async def main(host, port):
    async with aetcd.Client(host=host, port=int(port)) as client:
        await client.put(b"a/1", b"one")
        await client.put(b"a/2", b"two")
        assert (await client.get(b"a/1")).value == b"one"
        assert [kv.key for kv in await client.get_prefix(b"a/")] == [b"a/1", b"a/2"]
        done, _ = await client.transaction(
            compare=[client.transactions.value(b"a/1") == b"one"],
            success=[client.transactions.put(b"a/1", b"1")],
            failure=[],
        )
        assert done
        watch = await client.watch_prefix(b"b/")
        await client.put(b"b/1", b"x")
        async for event in watch:
            assert event.kv.key == b"b/1"
            break
        await watch.cancel()
        lease = await client.lease(60)
        await client.put(b"c", b"1", lease=lease)
        await lease.revoke()
        assert await client.get(b"c") is None
        assert await client.delete(b"a/1")
        print("ok")

asyncio.run(main(*sys.argv[1].removeprefix("http://").split(":")))
"""


def test_an_ordinary_etcd_client_works(tmp_path: Path) -> None:
    # In a separate process, because it registers etcd's message names.
    with PlacementDriver(tmp_path) as driver:
        ran = subprocess.run(
            [sys.executable, "-c", _AETCD, driver.url], capture_output=True, text=True, timeout=300, check=False
        )
    assert ran.stdout.strip() == "ok", ran.stderr


def test_only_callers_with_an_allowed_name_are_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, pump, stranger = (authority.tls(name) for name in ("pd", "pump", "stranger"))
    listed = replace(own, allowed_cn=("pump", "drainer"))
    with PlacementDriver(tmp_path / "pd", "localhost", tls=listed) as driver:
        with closing(PdClient([driver.url], tls=pump)) as pd, closing(EtcdClient([driver.url], tls=pump)) as etcd:
            assert pd.fetch_ts() > 0
            etcd.put(b"k", b"1")
            etcd.watch(b"k").cancel()
        with (
            closing(PdClient([driver.url], tls=stranger)) as pd,
            pytest.raises(Permanent, match="not on the allowed list"),
        ):
            pd.fetch_ts()
        with closing(EtcdClient([driver.url], tls=stranger)) as etcd:
            for call in (lambda: etcd.get(b"k"), lambda: etcd.watch(b"k"), lambda: etcd.keep_lease_alive(1)):
                with pytest.raises(Permanent, match="not on the allowed list: stranger"):
                    call()
