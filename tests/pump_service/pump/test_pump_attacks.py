"""Attacks on the pump's port by a client without the cluster id: the cost of each, and that other clients are served.

Bounds are of CPU seconds and memory of the pump's process, never of wall time. Figures:
docs/understand/pump-security.md.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from attacked_pump import (
    INFO,
    PULL,
    WATCH,
    WRITE,
    AttackedPump,
    attacked_pump,
    pull_request,
    whole_call,
    write_request,
)
from pump_helpers import until
from support.rawpeer import raw, request_block

from binlake.rpc import Channel, RpcError, frames, headers
from binlake.rpc.frames import Code, Setting
from binlake.wire.blocks import ASKED

pytestmark = pytest.mark.long

ELSEWHERE = "127.0.2.1"


def fetch(address: str, path: str) -> tuple[int, bytes]:
    """Status and body of a page."""
    connection = HTTPConnection(address, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture(scope="module")
def pump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedPump]:
    with attacked_pump(tmp_path_factory.mktemp("attacked")) as target:
        yield target


def test_thousands_of_initial_window_sizes_cost_no_more_than_their_bytes(pump: AttackedPump) -> None:
    with pump.raw(window=0) as peer:
        peer.send(b"".join(whole_call(one, INFO, b"") for one in range(1, 10_001, 2)))
        assert peer.ping()
        with pump.costs("SETTINGS with thousands of INITIAL_WINDOW_SIZE") as cost:
            values = [(Setting.INITIAL_WINDOW_SIZE, turn % 2) for turn in range(2700)]
            peer.attack(frames.encode_settings(values) * 3)
            assert pump.answers()
    assert cost.cpu_s < 1.5


def test_a_settings_flood_with_many_open_streams_is_cut_off(pump: AttackedPump) -> None:
    with pump.raw() as peer:
        peer.send(
            b"".join(frames.encode_headers(one, request_block(WRITE), end_stream=False) for one in range(1, 10_001, 2))
        )
        assert peer.ping()
        with pump.costs("a SETTINGS flood beside 5,000 streams") as cost:
            flood = b"".join(
                frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 65_535 + turn % 2)]) for turn in range(3000)
            )
            peer.attack(flood)
            assert pump.answers()
    assert cost.cpu_s < 0.5


def test_window_updates_with_many_blocked_streams_cost_no_more_than_their_bytes(pump: AttackedPump) -> None:
    with pump.raw(window=0) as peer:
        peer.send(b"".join(whole_call(one, INFO, b"") for one in range(1, 8001, 2)))
        assert peer.ping()
        with pump.costs("WINDOW_UPDATE flood beside 4,000 answers that wait") as cost:
            peer.attack(frames.encode_window_update(0, 1) * 5000)
            assert pump.answers()
    assert cost.cpu_s < 1.5


def test_a_gzip_bomb_is_not_unpacked(pump: AttackedPump) -> None:
    bomb = gzip.compress(bytes(512 << 20), 9)
    assert len(bomb) < 600_000
    block = request_block(WRITE, (b"grpc-encoding", b"gzip"))
    body = b"\x01" + len(bomb).to_bytes(4, "big") + bomb
    with pump.raw() as peer, pump.costs("gzip bomb, 0.5 MB") as cost:
        peer.send(frames.encode_headers(1, block, end_stream=False))
        for at in range(0, len(body), 16_000):
            peer.send(frames.encode_frame(frames.DATA, 0, 1, body[at : at + 16_000]))
        peer.send(frames.encode_frame(frames.DATA, frames.END_STREAM, 1))
        assert peer.ping()
        assert pump.answers()
    assert cost.mib < 64
    assert cost.cpu_s < 0.5


def test_slow_uploads_do_not_block_other_clients(pump: AttackedPump) -> None:
    with contextlib.ExitStack() as attack, pump.costs("130 unfinished uploads") as cost:
        peers = [attack.enter_context(pump.raw()) for _ in range(130)]
        for peer in peers:
            peer.begin(1, (1 << 20) - 1, WRITE)
            for _ in range(65):
                peer.send(frames.encode_frame(frames.DATA, 0, 1, bytes(16_000)))
        for peer in peers:
            assert peer.ping()
        for size in (20_000, 200_000, 1_000_000):
            until(lambda size=size: pump.accepts(size), f"a binlog of {size} bytes is accepted")
    assert cost.mib < 200


def test_pulls_from_the_far_future_do_not_block_other_clients(pump: AttackedPump) -> None:
    with pump.raw() as peer, pump.costs("2,000 pulls from the far future") as cost:
        for one in range(1, 4001, 2):
            peer.send(whole_call(one, PULL, pull_request((1 << 62) + one)))
        assert peer.ping()
        with Channel(pump.address) as channel, channel.open_stream(PULL, pull_request(0)) as stream:
            assert next(iter(stream))
        assert pump.answers()
    assert cost.cpu_s < 2
    assert cost.mib < 64


@pytest.mark.parametrize(
    "asked", [pytest.param([], id="singly", marks=pytest.mark.soak), pytest.param([ASKED], id="in blocks")]
)
def test_pullers_without_a_window_use_little_memory(pump: AttackedPump, asked: list[tuple[str, str]]) -> None:
    pump.store(20 << 20)
    name = f"200 pullers {'in blocks ' if asked else ''}without a window, 20 MiB stored"
    with pump.raw(window=0) as peer, pump.costs(name) as cost:
        peer.send(b"".join(whole_call(one, PULL, pull_request(0), asked) for one in range(1, 401, 2)))
        with Channel(pump.address) as channel, channel.open_stream(PULL, pull_request(0)) as stream:
            seen = 0
            for message in stream:  # a puller that reads gets all of it
                seen += len(message)
                if seen > 20 << 20:
                    break
        assert pump.answers()
        until(lambda: pump.threads() < 40, "no puller holds a thread")
    assert cost.mib < 160


@pytest.mark.soak
def test_pulls_in_blocks_cancelled_half_way_hold_no_memory(pump: AttackedPump) -> None:
    pump.store(20 << 20)
    ids = range(1, 401, 2)
    with pump.raw(window=0) as peer, pump.costs("200 pulls in blocks, cancelled half way") as cost:
        peer.send(b"".join(whole_call(one, PULL, pull_request(0), [ASKED]) for one in ids))
        # Room for only a part of each first block, and nobody reads the rest.
        peer.send(b"".join(frames.encode_window_update(one, 100_000) for one in ids))
        peer.send(frames.encode_window_update(0, 128 << 20))
        peer.until(frames.DATA, ids[-1])
        peer.attack(b"".join(frames.encode_rst_stream(one, Code.CANCEL) for one in ids))
        assert pump.answers()
        until(lambda: pump.threads() < 40, "no puller holds a thread")
    assert cost.mib < 160


@pytest.mark.soak
def test_pullers_without_a_window_hold_a_large_binlog_only_once(tmp_path: Path) -> None:
    mib = 64
    size = mib << 20
    with attacked_pump(tmp_path) as pump:
        pump.store_one(size)
        with pump.raw(window=0) as peer, pump.costs(f"20 pullers without a window, one binlog of {mib} MiB") as cost:
            peer.send(b"".join(whole_call(one, PULL, pull_request(0)) for one in range(1, 41, 2)))
            with Channel(pump.address) as channel, channel.open_stream(PULL, pull_request(0)) as stream:
                assert any(len(message) > size for message in stream)  # the binlog arrives at a puller that reads
            assert pump.answers()
    assert cost.mib < 6 * mib  # what is sent, and one binlog being read: three copies each
    assert cost.cpu_s < 6


@pytest.mark.soak
def test_idle_connections_do_not_block_other_clients(pump: AttackedPump) -> None:
    count = 10_050
    host, _, port = pump.address.rpartition(":")
    hello = frames.PREFACE + frames.encode_settings([]) + whole_call(1, "/grpc.health.v1.Health/Check", b"")
    with contextlib.ExitStack() as attack, pump.costs("10,050 connections kept after a call") as cost:
        for at in range(count):
            # Several addresses, because one address has a limited number of ports.
            peer = socket.create_connection((host, int(port)), 60, source_address=(f"127.0.1.{1 + at % 4}", 0))
            attack.callback(peer.close)
            with contextlib.suppress(OSError):  # refused, or closed while the request was sent
                peer.sendall(hello)
                peer.recv(1000)
        assert pump.answers()
    assert cost.mib < 400


def test_http1_bodies_in_tiny_chunks_are_cut_off(pump: AttackedPump) -> None:
    host, _, port = pump.address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as peer, pump.costs("HTTP/1.1 in 1-byte chunks") as cost:
        with contextlib.suppress(OSError):  # the connection was cut off
            peer.sendall(b"PUT /state/x/pause HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(200):
                peer.sendall(b"1\r\nx\r\n" * 1000)
        assert pump.answers()
    assert cost.cpu_s < 0.6


def test_header_blocks_are_not_held_in_memory(pump: AttackedPump) -> None:
    with contextlib.ExitStack() as attack, pump.costs("5 connections, 512 header blocks of 15 KiB each") as cost:
        for _ in range(5):
            peer = attack.enter_context(pump.raw())
            for turn in range(512):
                filling = headers.encode([(b"x", b"%015000d" % turn)])
                peer.send(frames.encode_headers(2 * turn + 1, request_block(INFO) + filling, end_stream=True))
            assert peer.ping()
    assert cost.mib < 24


def test_a_refused_write_does_not_write_a_log_line(pump: AttackedPump) -> None:
    before = pump.log_bytes()
    with Channel(pump.address) as channel, pump.costs("5,000 refused writes") as cost:
        calls = [channel.start(WRITE, write_request(b"x", cluster=1), 60) for _ in range(5000)]
        for call in calls:
            with pytest.raises(RpcError, match="mismatched cluster id"):
                call.await_result()
    assert pump.log_bytes() - before < 20_000
    assert cost.cpu_s < 5


def test_rapid_resets_are_cut_off_early(pump: AttackedPump) -> None:
    with pump.raw() as peer, pump.costs("rapid reset, 20,000 calls") as cost:
        flood = b"".join(
            frames.encode_headers(one, request_block(WRITE), end_stream=False)
            + frames.encode_rst_stream(one, Code.CANCEL)
            for one in range(1, 40_001, 2)
        )
        peer.attack(flood)
        assert peer.goaway_code() == Code.ENHANCE_YOUR_CALM
        assert pump.answers()
    assert cost.cpu_s < 0.5


def test_unfinished_calls_without_data_are_bounded_over_all_connections(pump: AttackedPump) -> None:
    begun = b"".join(frames.encode_headers(one, request_block(WRITE), end_stream=False) for one in range(1, 18_001, 2))
    with contextlib.ExitStack() as attack, pump.costs("20 connections with 9,000 begun calls each") as cost:
        for _ in range(20):
            attack.enter_context(pump.raw()).attack(begun)
        assert pump.answers()
        assert pump.accepts(200_000)
    assert cost.mib < 64


def test_a_huge_path_and_an_hpack_bomb_cost_no_more_than_their_bytes(pump: AttackedPump) -> None:
    with pump.raw() as peer, pump.costs("HPACK bombs and paths of 15 KiB, 2 MB") as cost:
        large = b"\x40\x01x\x7f" + bytes([(3000 - 127) & 127 | 128, (3000 - 127) >> 7]) + b"v" * 3000
        bomb = request_block(WRITE) + large + b"\xbe" * 10_000
        for turn in range(75):
            peer.attack(frames.encode_headers(4 * turn + 1, bomb, end_stream=True))
            peer.attack(frames.encode_headers(4 * turn + 3, request_block("/" + "x" * 15_000), end_stream=True))
        assert pump.answers()
    assert cost.cpu_s < 1.5
    assert cost.mib < 32


def test_health_watches_are_bounded_but_another_address_is_admitted(pump: AttackedPump) -> None:
    with pump.raw() as peer, pump.costs("5,000 watches of health") as cost:
        peer.send(b"".join(whole_call(one, WATCH, b"") for one in range(1, 10_001, 2)))
        assert peer.until(frames.HEADERS, 9_999)[1] & frames.END_STREAM, "the last one is refused"
        assert peer.ping()
        with raw(pump.address, source=ELSEWHERE) as other:
            other.send(whole_call(1, WATCH, b""))
            assert other.until(frames.DATA, 1)
        assert pump.answers()
    assert cost.cpu_s < 2
    assert cost.mib < 32


@pytest.mark.soak
def test_many_pullers_of_one_address_do_not_block_other_clients(tmp_path: Path) -> None:
    with attacked_pump(tmp_path) as pump, pump.raw() as peer, pump.costs("1,200 pullers of an address") as cost:
        peer.send(b"".join(whole_call(one, PULL, pull_request(0)) for one in range(1, 2401, 2)))
        assert peer.ping()
        with raw(pump.address, source=ELSEWHERE) as other:
            other.send(whole_call(1, PULL, pull_request(0)))
            assert other.until(frames.DATA, 1)
            assert other.ping()
    assert cost.mib < 64


def test_a_flood_of_requests_for_one_page_does_not_block_another_page(pump: AttackedPump) -> None:
    asked = headers.encode(
        [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/debug/binlog/1"), (b":authority", b"x")]
    )
    with pump.raw() as peer, pump.costs("1,500 requests of a page") as cost:
        peer.send(b"".join(frames.encode_headers(one, asked, end_stream=True) for one in range(1, 3001, 2)))
        status, body = fetch(pump.address, "/metrics")
        assert status == 200
        assert b"binlog_pump" in body
        assert peer.ping()
    assert cost.mib < 64
