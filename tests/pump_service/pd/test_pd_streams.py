"""The embedded placement driver's streams: restarts, clients that disconnect, and a clock that is led."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from binlake import tso
from binlake.cluster.placement import ClockClient, EtcdClient, PdClient
from binlake.errors import Permanent, SourceUnavailable
from binlake.pump_service.pd import PlacementDriver, server
from binlake.pump_service.pd.etcd_service import Streams
from binlake.wire import etcd_pb2 as etcd_pb
from binlake.wire import etcd_rpc as rpc
from binlake.wire import pd_pb2 as pb
from binlake.wire.pd_pb2_grpc import PDStub
from deploy.local.ports import free_port

NOW = 1_795_000_000_000


def port_of(driver: PlacementDriver) -> int:
    return int(driver.url.rpartition(":")[2])


def test_another_cluster_in_the_header_is_refused_but_members_are_answered(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, cluster_id=7) as driver:
        with grpc.insecure_channel(driver.url.removeprefix("http://")) as channel:
            stub, header = PDStub(channel), pb.RequestHeader(cluster_id=8)
            members = stub.GetMembers(pb.GetMembersRequest(header=header))
            with pytest.raises(grpc.RpcError) as refused:
                next(stub.Tso(iter([pb.TsoRequest(header=header, count=1)])))
        assert members.header.cluster_id == 7
        assert list(members.leader.client_urls) == [driver.url]
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.long
def test_a_client_continues_after_a_restart_with_the_clock_set_back(tmp_path: Path) -> None:  # S0-16
    driver = PlacementDriver(tmp_path, port=free_port(), now_ms=lambda: NOW).start()
    client = PdClient([driver.url])
    before = client.fetch_ts(100)
    driver.stop()
    with PlacementDriver(tmp_path, port=port_of(driver), now_ms=lambda: NOW - 3_600_000):
        assert client.fetch_ts() > before
    client.close()


def test_another_cluster_behind_the_same_url_is_refused(tmp_path: Path) -> None:
    driver = PlacementDriver(tmp_path / "a", port=free_port(), cluster_id=1).start()
    client = PdClient([driver.url])
    client.fetch_ts()
    driver.stop()
    other = PlacementDriver(tmp_path / "b", port=port_of(driver), cluster_id=2)
    with other, pytest.raises(Permanent, match="another cluster"):
        client.fetch_ts()
    client.close()


def test_a_count_larger_than_a_millisecond_holds_is_refused(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path) as driver:
        client = PdClient([driver.url])
        with pytest.raises(Permanent, match="cannot give 200000"):
            client.fetch_ts(200_000)
        assert client.fetch_ts() > 0
        client.close()


def test_a_watch_reports_that_the_server_stopped(tmp_path: Path) -> None:
    driver = PlacementDriver(tmp_path).start()
    etcd = EtcdClient([driver.url])
    watch = etcd.watch(b"k")
    stopper = threading.Thread(target=driver.stop)
    stopper.start()
    with pytest.raises(SourceUnavailable):
        next(iter(watch))
    stopper.join()
    etcd.close()


def test_a_refused_call_does_not_affect_the_watch_of_another_thread(tmp_path: Path) -> None:
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


class CountingDriver(PlacementDriver):
    """Counts its threads that take a timestamp, or wait for one.

    `sys._current_frames` shows them too, but before Python 3.11.9 it can deadlock the process (python/cpython#106883).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._count, self._changed = 0, threading.Condition()

    def take(self, count: int, wanted: Callable[[], bool] = lambda: True) -> int:
        self._add(1)
        try:
            return super().take(count, wanted)
        finally:
            self._add(-1)

    def wait_for_callers(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._count == count, 60), f"{self._count} threads, not {count}"

    def _add(self, change: int) -> None:
        with self._changed:
            self._count += change
            self._changed.notify_all()


@pytest.mark.long
def test_a_wait_for_a_led_clock_ends_with_its_client_or_with_the_bound(tmp_path: Path) -> None:
    with CountingDriver(tmp_path, led_from=1) as driver:
        clock, patient = ClockClient([driver.url]), PdClient([driver.url])
        impatient = PdClient([driver.url], timeout_s=2)
        clock.lead(tso.compose(NOW))
        for _ in range(2):
            patient.fetch_ts(60_000)
        with pytest.raises(SourceUnavailable, match="no timestamp within"):
            impatient.fetch_ts(60_000)
        driver.wait_for_callers(0)  # the client no longer waits for that batch, so the thread does not either
        taken: list[int] = []
        waiter = threading.Thread(target=lambda: taken.append(patient.fetch_ts(60_000)))
        waiter.start()
        driver.wait_for_callers(1)
        clock.lead(tso.compose(NOW + 10))
        waiter.join(60)
        assert tso.extract_physical(taken[0]) == NOW + 9
        for client in (clock, impatient, patient):
            client.close()


@pytest.mark.process
def test_the_command_starts_led_stays_led_and_stops_cleanly(tmp_path: Path) -> None:
    def run(led: tuple[str, ...]) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "binlake.cli", "pd", "--addr=127.0.0.1:0", f"--data-dir={tmp_path}", *led]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("serving "))
        return process, line.split()[1]

    process, url = run(("--led", f"--start-ts={tso.compose(NOW)}"))
    pd, clock = PdClient([url]), ClockClient([url])
    first = pd.fetch_ts()
    assert tso.extract_physical(first) == NOW + 1
    clock.lead(tso.compose(NOW + 500))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    # Still led without the option: the wall clock has no effect before the release.
    process, url = run(())
    pd, clock = PdClient([url]), ClockClient([url])
    assert tso.extract_physical(pd.fetch_ts()) == NOW + 499
    clock.release()
    assert NOW + 500 < tso.extract_physical(pd.fetch_ts()) < NOW + 60_000
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_a_clock_not_started_as_led_cannot_be_led(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, now_ms=lambda: NOW) as driver:
        pd, clock = PdClient([driver.url]), ClockClient([driver.url])
        for call in (lambda: clock.lead(tso.compose(NOW * 2)), clock.release):
            with pytest.raises(Permanent, match="is not led"):
                call()
        assert tso.extract_physical(pd.fetch_ts()) == NOW
        pd.close()
        clock.close()


@pytest.mark.process
def test_many_clients_are_all_answered(tmp_path: Path) -> None:
    hold = threading.Event()

    def asked(cluster_id: int):  # type: ignore[no-untyped-def]
        yield pb.TsoRequest(header=pb.RequestHeader(cluster_id=cluster_id), count=1)
        hold.wait(300)

    with PlacementDriver(tmp_path) as driver, grpc.insecure_channel(driver.url.removeprefix("http://")) as channel:
        stub = PDStub(channel)
        calls = [stub.Tso(asked(driver.cluster_id)) for _ in range(400)]
        assert all(next(call).count == 1 for call in calls)
        etcd, client = EtcdClient([driver.url]), PdClient([driver.url])
        etcd.put(b"k", b"1")
        assert client.fetch_ts() > 0
        hold.set()
        for one in (*calls, etcd, client):
            one.cancel() if one in calls else one.close()


def test_streams_above_the_limit_are_refused_and_calls_still_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STREAMS", 3)
    monkeypatch.setattr(server, "Streams", lambda: Streams(3))
    with PlacementDriver(tmp_path) as driver:
        etcd = EtcdClient([driver.url])
        watches = [etcd.watch(b"k") for _ in range(3)]
        with pytest.raises(SourceUnavailable, match="3 streams are already open"):
            PdClient([driver.url]).fetch_ts()
        etcd.put(b"k", b"1")
        for watch in watches:
            assert next(iter(watch))[1].kv.value == b"1"
            watch.cancel()
        etcd.close()


@pytest.mark.long
def test_thousands_of_watches_on_one_stream_share_its_threads(tmp_path: Path) -> None:
    with PlacementDriver(tmp_path) as driver, grpc.insecure_channel(driver.url.removeprefix("http://")) as channel:
        done = threading.Event()

        def asked():  # type: ignore[no-untyped-def]
            for number in range(3000):
                create = etcd_pb.WatchCreateRequest(key=b"k%d" % (number % 3), watch_id=number + 1)
                yield etcd_pb.WatchRequest(create_request=create)
            yield etcd_pb.WatchRequest(cancel_request=etcd_pb.WatchCancelRequest(watch_id=1))
            done.wait(300)

        before = threading.active_count()
        watch = channel.stream_stream(
            rpc.WATCH.path,
            request_serializer=etcd_pb.WatchRequest.SerializeToString,
            response_deserializer=etcd_pb.WatchResponse.FromString,
        )(asked())
        made = [next(watch) for _ in range(3001)]
        assert sum(answer.created for answer in made) == 3000
        assert [answer.watch_id for answer in made if answer.canceled] == [1]
        assert threading.active_count() < before + 20
        etcd = EtcdClient([driver.url])
        etcd.put(b"k0", b"1")
        events = [next(watch) for _ in range(999)]
        assert {answer.watch_id % 3 for answer in events} == {1}
        assert 1 not in {answer.watch_id for answer in events}
        done.set()
        watch.cancel()
        etcd.close()
