"""Only one process has a node id, even if a second one has the same advertised address (S0-35, hazards R-06)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pump_helpers import until

from binlake.cluster.placement import EtcdClaim, EtcdClient
from binlake.errors import Fenced, Permanent
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer


@pytest.mark.long
def test_a_live_holder_keeps_the_node_id_and_a_dead_one_loses_it(etcd: EtcdClient) -> None:
    first = EtcdClaim(etcd, "pump1", "store-a", "h:1", ttl_s=1)
    second = EtcdClaim(etcd, "pump1", "store-b", "h:1", ttl_s=1)
    first.take()
    first.renew()
    second.take()  # the first one stops renewing, so its lease expires
    second.renew()
    with pytest.raises(Fenced, match=r"another process took this node id.*its_store=store-b"):
        first.renew()
    second.release()
    EtcdClaim(etcd, "pump1", "store-c", "h:1", ttl_s=60).take()
    with pytest.raises(Permanent, match="its_store=store-c its_addr=h:1"):
        EtcdClaim(etcd, "pump1", "store-d", "h:1", ttl_s=1).take()


def test_a_process_on_the_same_directory_takes_over_at_once(etcd: EtcdClient) -> None:
    # Its lock shows that the old process is dead; of two copies of a directory, the one started later has the name.
    first = EtcdClaim(etcd, "pump1", "store-a", "h:1", ttl_s=3600)
    first.take()
    EtcdClaim(etcd, "pump1", "store-a", "h:1", ttl_s=3600).take()
    with pytest.raises(Fenced):
        first.renew()


@pytest.mark.long
def test_a_holder_that_lost_contact_keeps_the_node_id_if_nobody_claimed_it(etcd: EtcdClient) -> None:
    claim = EtcdClaim(etcd, "pump1", "store-a", "h:1", ttl_s=60)
    claim.take()
    etcd.revoke_lease(claim._lease)
    claim.renew()
    with pytest.raises(Permanent):
        EtcdClaim(etcd, "pump1", "store-b", "h:1", ttl_s=1).take()


Start = Callable[[str], PumpServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        pd = stack.enter_context(PlacementDriver(tmp_path / "pd"))

        def started(folder: str) -> PumpServer:
            config = PumpConfig(
                pd_urls=(pd.url,), data_dir=tmp_path / folder, addr="127.0.0.1:0", advertise_addr="pump:8250",
                node_id="pump1", heartbeat_interval_s=0.1, stop_write_at_available_space=0,
            )  # fmt: skip
            pump = PumpServer(config)
            pump.start()
            stack.callback(pump.stop)
            return pump

        yield started


@pytest.mark.process
def test_a_second_pump_with_the_same_node_id_and_address_is_refused(start: Start) -> None:
    first = start("one")
    with pytest.raises(Permanent, match="another process runs under this node id"):
        start("two")
    assert first.service.state == "online"
    assert str(first.service.problems) == ""


def test_of_two_copies_of_a_directory_only_the_one_started_later_serves(start: Start, tmp_path: Path) -> None:
    first = start("one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = start("two")
    with pytest.raises(Fenced):
        first.serve()
    entries = first._storage.directory.path, second._storage.directory.path
    assert entries[0] != entries[1]
    assert second.service.state == "online"


def test_a_pump_that_left_frees_its_node_id_at_once(start: Start, tmp_path: Path) -> None:
    start("one").stop()
    shutil.rmtree(tmp_path / "one")  # the disk was replaced
    pump = start("one")
    until(lambda: pump.service.state == "online", "it serves")
    assert pump._members.list_pumps()[0].state == "online"
