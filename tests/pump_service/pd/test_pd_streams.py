"""The embedded placement driver's streams: a restart under a client, a client that goes, a clock that is led."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import grpc
import pytest

from binlake import tso
from binlake.errors import Permanent, SourceUnavailable
from binlake.placement import ClockClient, EtcdClient, PdClient
from binlake.wire import pd_pb2 as pb
from binlake.wire.pd_pb2_grpc import PDStub
from deploy.local.ports import free_port
from pump_service.pd import PlacementDriver

NOW = 1_795_000_000_000


def port_of(driver: PlacementDriver) -> int:
    return int(driver.url.rpartition(":")[2])


def test_another_cluster_in_the_header_is_refused_but_members_are_told(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, cluster_id=7) as driver:
        with grpc.insecure_channel(driver.url.removeprefix("http://")) as channel:
            stub, header = PDStub(channel), pb.RequestHeader(cluster_id=8)
            members = stub.GetMembers(pb.GetMembersRequest(header=header))
            with pytest.raises(grpc.RpcError) as refused:
                next(stub.Tso(iter([pb.TsoRequest(header=header, count=1)])))
        assert members.header.cluster_id == 7
        assert list(members.leader.client_urls) == [driver.url]
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_client_goes_on_after_a_restart_with_the_clock_set_back(tmp_path: Path) -> None:  # S0-16
    driver = PlacementDriver(tmp_path, port=free_port(), now_ms=lambda: NOW).start()
    client = PdClient([driver.url])
    before = client.tso(100)
    driver.stop()
    with PlacementDriver(tmp_path, port=port_of(driver), now_ms=lambda: NOW - 3_600_000):
        assert client.tso() > before
    client.close()


def test_another_cluster_behind_the_same_url_is_refused(tmp_path: Path) -> None:
    driver = PlacementDriver(tmp_path / "a", port=free_port(), cluster_id=1).start()
    client = PdClient([driver.url])
    client.tso()
    driver.stop()
    other = PlacementDriver(tmp_path / "b", port=port_of(driver), cluster_id=2)
    with other, pytest.raises(Permanent, match="another cluster"):
        client.tso()
    client.close()


def test_a_count_that_no_millisecond_holds_is_refused(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path) as driver:
        client = PdClient([driver.url])
        with pytest.raises(Permanent, match="cannot give 200000"):
            client.tso(200_000)
        assert client.tso() > 0
        client.close()


def test_a_watch_tells_that_the_server_went_away(tmp_path: Path) -> None:
    driver = PlacementDriver(tmp_path).start()
    etcd = EtcdClient([driver.url])
    watch = etcd.watch(b"k")
    stopper = threading.Thread(target=driver.stop)
    stopper.start()
    with pytest.raises(SourceUnavailable):
        next(iter(watch))
    stopper.join()
    etcd.close()


def test_a_refused_call_leaves_the_watch_of_another_thread_alone(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path) as driver:
        etcd = EtcdClient([driver.url])
        watch = etcd.watch(b"k")
        with pytest.raises(Permanent, match="lease not found"):
            etcd.put(b"k", b"1", lease=404)
        etcd.put(b"k", b"2")
        _, event = next(iter(watch))
        assert event.kv.value == b"2"
        watch.cancel()
        etcd.close()


def test_a_wait_for_a_led_clock_ends_with_its_client_or_with_the_bound(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, led_from=1) as driver:
        clock, patient = ClockClient([driver.url]), PdClient([driver.url])
        impatient = PdClient([driver.url], timeout_s=2)
        clock.lead(tso.compose(NOW))
        for _ in range(2):
            patient.tso(60_000)
        with pytest.raises(SourceUnavailable, match="no timestamp within"):
            impatient.tso(60_000)
        deadline = time.monotonic() + 60
        # The server's thread is free again: nobody waits for that batch any more.
        while any(frame.f_locals.get("self") is driver._oracle for frame in _frames()):
            assert time.monotonic() < deadline, "a thread still waits for a client that is gone"
            time.sleep(0.05)
        taken: list[int] = []
        waiter = threading.Thread(target=lambda: taken.append(patient.tso(60_000)))
        waiter.start()
        clock.lead(tso.compose(NOW + 10))
        waiter.join(60)
        assert tso.physical(taken[0]) == NOW + 9
        for client in (clock, impatient, patient):
            client.close()


def _frames() -> list[FrameType]:
    found = []
    for frame in sys._current_frames().values():
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
    return found


def test_the_command_is_led_keeps_it_and_ends_cleanly(tmp_path: Path) -> None:
    def run(led: tuple[str, ...]) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "binlake.cli", "pd", "--addr=127.0.0.1:0", f"--data-dir={tmp_path}", *led]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("serving "))
        return process, line.split()[1]

    process, url = run(("--led", f"--start-ts={tso.compose(NOW)}"))
    pd, clock = PdClient([url]), ClockClient([url])
    first = pd.tso()
    assert tso.physical(first) == NOW + 1
    clock.lead(tso.compose(NOW + 500))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    # Led still, without being told again: the wall clock plays no part before the release.
    process, url = run(())
    pd, clock = PdClient([url]), ClockClient([url])
    assert tso.physical(pd.tso()) == NOW + 499
    clock.release()
    assert NOW + 500 < tso.physical(pd.tso()) < NOW + 60_000
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_nobody_leads_a_clock_that_was_not_started_to_be_led(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, now_ms=lambda: NOW) as driver:
        pd, clock = PdClient([driver.url]), ClockClient([driver.url])
        for call in (lambda: clock.lead(tso.compose(NOW * 2)), clock.release):
            with pytest.raises(Permanent, match="is not led"):
                call()
        assert tso.physical(pd.tso()) == NOW
        pd.close()
        clock.close()
