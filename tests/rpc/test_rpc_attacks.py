"""A peer that breaks rules or exceeds limits gets an error, costs little, and does not affect other peers."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import tracemalloc

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rpc_helpers import ECHO, EMPTY, LATE, STREAM, RawPeer, raw, request_block, serving, until
from support.examples import examples

from binlake.rpc import Channel, Limits, frames, headers
from binlake.rpc.frames import Code, Setting


def still_served(address: str) -> bool:
    with Channel(address) as channel:
        return channel.call(ECHO, b"others", 60) == b"others"


def rss() -> int:
    return psutil.Process(os.getpid()).memory_info().rss


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frames.encode_frame(frames.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (frames.encode_frame(frames.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (frames.encode_frame(frames.HEADERS, 4, 2, request_block()), Code.PROTOCOL_ERROR),
        (frames.encode_frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (
            frames.encode_frame(frames.HEADERS, 0, 1, request_block())
            + frames.encode_frame(frames.PING, 0, 0, bytes(8)),
            1,
        ),
        (frames.encode_frame(frames.CONTINUATION, 4, 1, request_block()), Code.PROTOCOL_ERROR),
        (frames.encode_frame(frames.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 31)]), Code.FLOW_CONTROL_ERROR),
        (frames.encode_settings([(Setting.MAX_FRAME_SIZE, 1)]), Code.PROTOCOL_ERROR),
        (frames.encode_window_update(0, 0), Code.PROTOCOL_ERROR),
        (frames.encode_window_update(0, frames.U31), Code.FLOW_CONTROL_ERROR),
        (frames.encode_frame(frames.PUSH_PROMISE, 4, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frames.encode_frame(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frames.encode_frame(frames.RST_STREAM, 0, 9, bytes(4)), Code.PROTOCOL_ERROR),
        (frames.encode_head(1 << 23, frames.DATA, 0, 1), Code.FRAME_SIZE_ERROR),
        (frames.encode_frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\xff" + request_block()[:9]), Code.PROTOCOL_ERROR),
    ],
)
def test_broken_rule_ends_the_connection_with_its_code(attack: bytes, code: int) -> None:
    with serving() as (_, address), raw(address) as peer:
        peer.attack(attack)
        assert peer.goaway_code() == code
        assert still_served(address)


@pytest.mark.parametrize(
    "flood",
    [
        frames.encode_frame(frames.PING, 0, 0, bytes(8)),
        frames.encode_settings([(Setting.HEADER_TABLE_SIZE, 0)]),
        frames.encode_frame(frames.PRIORITY, 0, 1, bytes(5)),
        frames.encode_window_update(0, 1),
        frames.encode_frame(77, 0, 0, b""),
    ],
    ids=["ping", "settings", "priority", "window update", "unknown kind"],
)
def test_flood_of_control_frames_ends_the_connection(flood: bytes) -> None:
    with serving(Limits(control_frames_per_s=1000)) as (_, address), raw(address) as peer:
        peer.socket.settimeout(60)
        try:
            for _ in range(50):
                peer.send(flood * 1000)
        except OSError:
            pass  # the server closed while we were sending
        else:
            assert peer.goaway_code() == Code.ENHANCE_YOUR_CALM
        assert still_served(address)


def test_flood_of_empty_data_frames_ends_the_connection() -> None:
    with serving(Limits(control_frames_per_s=1000)) as (_, address), raw(address) as peer:
        peer.begin(1, 100)
        peer.attack(frames.encode_frame(frames.DATA, 0, 1) * 2000)
        assert peer.goaway_code() == Code.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    with serving(Limits(resets_per_s=100)) as (server, address), raw(address) as peer:
        one = b""
        for stream_id in range(1, 2001, 2):
            one += frames.encode_headers(stream_id, request_block(LATE), end_stream=False)
            one += frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id, bytes(5))
            one += frames.encode_rst_stream(stream_id, Code.CANCEL)
        peer.attack(one)
        assert peer.goaway_code() == Code.ENHANCE_YOUR_CALM
        assert len(server.waiting) < 100
        assert still_served(address)


def test_cancelled_calls_count_while_their_work_runs() -> None:
    with serving(Limits(streams=10)) as (server, address), raw(address) as peer:
        for stream_id in range(1, 21, 2):
            peer.call(stream_id, b"", LATE)
            peer.send(frames.encode_rst_stream(stream_id, Code.CANCEL))
        peer.call(21, b"", LATE)
        assert peer.reset_code(21) == Code.REFUSED_STREAM
        server.answer_late()
        until(lambda: all(peer._working == 0 for peer in server._peers.peers), "the work ends")
        peer.call(23, b"now")
        assert peer.until(frames.DATA, 23)[3] == b"\x00\x00\x00\x00\x03now"


def test_continuation_flood_ends_the_connection() -> None:
    with serving() as (_, address), raw(address) as peer:
        peer.send(frames.encode_frame(frames.HEADERS, 0, 1, request_block()))
        peer.attack(frames.encode_frame(frames.CONTINUATION, 0, 1, b"") * 100)
        assert peer.goaway_code() == Code.ENHANCE_YOUR_CALM
        with raw(address) as other:
            other.send(frames.encode_frame(frames.HEADERS, 0, 1, request_block()))
            other.attack(frames.encode_frame(frames.CONTINUATION, 0, 1, headers.encode([(b"x", bytes(9000))])) * 10)
            assert other.goaway_code() == Code.ENHANCE_YOUR_CALM


def test_too_large_header_list_is_refused_and_the_table_stays_in_step() -> None:
    with serving() as (_, address), raw(address) as peer:
        large = b"\x40\x01x\x7f" + bytes([(3000 - 127) & 127 | 128, (3000 - 127) >> 7]) + b"v" * 3000
        bomb = request_block() + large + b"\xbe" * 10_000  # refers to an entry of the dynamic table ten thousand times
        peer.send(frames.encode_headers(1, bomb, end_stream=True))
        assert peer.reset_code(1) == Code.ENHANCE_YOUR_CALM
        peer.call(3, b"next")
        assert peer.until(frames.DATA, 3)[3] == b"\x00\x00\x00\x00\x04next"


def test_data_beyond_a_window_is_a_flow_control_error() -> None:
    limits = Limits(stream_window=70_000, connection_window=200_000)
    with serving(limits) as (_, address), raw(address) as peer:
        full = frames.encode_frame(frames.DATA, 0, 1, bytes(16_000))
        peer.send(frames.encode_headers(1, request_block(LATE), end_stream=False))
        peer.attack(frames.encode_frame(frames.DATA, 0, 1, (1 << 20).to_bytes(5, "big")) + full * 2 + full * 20)
        found = peer.next()
        while found is not None and found[0] not in (frames.RST_STREAM, frames.WINDOW_UPDATE):
            found = peer.next()
        assert still_served(address)


def test_reader_that_reads_nothing_blocks_its_stream_without_using_memory() -> None:
    wide = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, frames.U31)])
    with serving() as (server, address), raw(address, settings=wide) as peer:
        peer.send(frames.encode_window_update(0, frames.U31 - 65_535))
        before = rss()
        for stream_id in range(1, 9, 2):
            peer.call(stream_id, b"1000000 10000", STREAM)  # 10 GB each
        until(lambda: len(server._workers._streams) == 4, "they run")
        time.sleep(0.5)
        assert rss() - before < 100 << 20
        assert still_served(address)
    assert not server._workers._streams or server.gone == 4


@pytest.mark.long
def test_answers_to_a_peer_that_never_reads_do_not_accumulate() -> None:
    with serving(Limits(control_frames_per_s=10**9)) as (_, address), raw(address) as peer:
        before = rss()
        peer.socket.settimeout(0.5)
        ping = frames.encode_frame(frames.PING, 0, 0, bytes(8)) * 10_000
        sent = 0
        try:
            while sent < 500 << 20:
                peer.send(ping)
                sent += len(ping)
        except TimeoutError:
            pass
        assert sent < 400 << 20, "the server reads on though nobody reads its answers"
        assert rss() - before < 50 << 20
        assert still_served(address)


@pytest.mark.long
def test_messages_in_tiny_frames_use_only_memory_for_their_bytes() -> None:
    with serving(Limits(control_frames_per_s=10**9)) as (_, address), raw(address) as peer:
        # Not the memory of the process, in which other tests have left threads.
        tracemalloc.start()
        try:
            peer.begin(1, 900_000)
            for _ in range(30):
                peer.send(frames.encode_frame(frames.DATA, 0, 1, b"ab") * 10_000)
            assert peer.ping()
            # As objects of their own, the 300,000 payloads alone would take 10 MiB.
            assert tracemalloc.get_traced_memory()[0] < 5 << 20
        finally:
            tracemalloc.stop()


def test_silent_connections_are_closed() -> None:
    with serving(Limits(header_wait_s=0.2)) as (server, address):
        host, _, port = address.rpartition(":")
        silent = socket.create_connection((host, int(port)), 60)
        assert silent.recv(10) == b""
        with raw(address) as peer:  # a preface, then nothing
            assert peer.goaway_code() == Code.NO_ERROR
        until(lambda: not server._peers.peers, "nobody is left")
        silent.close()


def test_idle_connection_is_closed_for_a_new_one() -> None:
    with serving(Limits(connections=3)) as (server, address), raw(address) as one, raw(address) as two:
        assert one.ping()
        two.call(1, b"", LATE)
        assert two.ping()
        with socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2])), 60) as silent:
            until(lambda: len(server._peers.silent) == 1, "all places are taken")
            assert still_served(address)  # takes the slot of the connection that has sent nothing
            assert silent.recv(1) == b""
        with raw(address) as three, raw(address) as four:
            assert three.ping()
            assert four.ping()
            assert one.goaway_code() == Code.ENHANCE_YOUR_CALM  # closed: idle, and silent for the longest time
        server.answer_late()
        assert two.until(frames.DATA, 1)[3] == b"\x00\x00\x00\x00\x04late"


def test_address_with_most_connections_loses_one() -> None:
    with serving(Limits(connections=3)) as (_, address), contextlib.ExitStack() as stack:
        host, _, port = address.rpartition(":")
        alone = stack.enter_context(raw(address))
        assert alone.ping()
        for number in range(5):
            other = socket.create_connection((host, int(port)), 60, source_address=("127.0.0.2", 0))
            stack.callback(other.close)
            other.sendall(frames.PREFACE + frames.encode_settings([]))
            with contextlib.suppress(OSError):
                assert other.recv(100), number
        assert alone.ping()


def test_calls_that_wait_for_their_peers_have_a_common_limit() -> None:
    with serving(Limits(waiting_calls=100)) as (server, address), raw(address) as many, raw(address) as few:
        few.call(1, b"", LATE)
        few.begin(3, 100)
        for stream_id in range(1, 401, 2):
            many.begin(stream_id, 100)
        assert many.goaway_code() == Code.ENHANCE_YOUR_CALM
        assert few.ping()
        server.answer_late()
        assert few.until(frames.DATA, 1)[3] == b"\x00\x00\x00\x00\x04late"


def test_windows_of_open_streams_follow_a_changed_initial_window() -> None:
    # grpc's C core changes it during a connection; a window may even become negative.
    small = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 10)])
    with serving() as (_, address), raw(address, settings=small) as peer:
        peer.call(1, b"x" * 95)
        assert len(peer.until(frames.DATA, 1)[3]) == 10
        peer.send(frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 0)]))  # now 10 below 0
        peer.send(frames.encode_window_update(1, 15))
        assert len(peer.until(frames.DATA, 1)[3]) == 5
        peer.send(frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1000)]))
        assert peer.next() == (frames.SETTINGS, frames.ACK, 0, b"")  # sent before the data, as the C core requires
        assert len(peer.until(frames.DATA, 1)[3]) == 85
        assert peer.until(frames.HEADERS, 1)[1] & frames.END_STREAM


def test_padding_priority_continuation_and_trailers_are_accepted() -> None:
    with serving() as (_, address), raw(address) as peer:
        block = request_block()
        head = b"\x03" + bytes(4) + b"\x10" + block[:20] + bytes(3)
        flags = frames.PADDED | frames.WITH_PRIORITY
        peer.send(
            frames.encode_frame(frames.HEADERS, flags, 1, head)
            + frames.encode_frame(frames.CONTINUATION, 0, 1, block[20:30])
        )
        peer.send(frames.encode_frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[30:]))
        peer.send(frames.encode_frame(frames.DATA, frames.PADDED, 1, b"\x02\x00\x00\x00\x00\x01" + b"\x00\x00"))
        peer.send(frames.encode_frame(frames.DATA, frames.PADDED, 1, b"\x00y"))
        peer.send(frames.encode_headers(1, headers.encode([(b"trailing", b"yes")]), end_stream=True))
        assert peer.until(frames.DATA, 1)[3] == b"\x00\x00\x00\x00\x01y"


FRAMES = st.builds(
    frames.encode_frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 3, 3, 5, 2, 99]),
    st.one_of(
        st.binary(max_size=40),
        st.just(request_block(EMPTY)),
        st.just(request_block(ECHO, (b"grpc-timeout", b"1m"))),
        st.just(b"\x00\x00\x00\x00\x03abc"),
        st.just((4).to_bytes(4, "big")),
        st.just(bytes(8)),
    ),
)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(FRAMES, max_size=12), st.randoms(use_true_random=False))
def test_server_answers_or_closes_after_random_frames(
    fuzz_server: tuple[str, list[str]], parts: list[bytes], random: object
) -> None:
    address, errors = fuzz_server
    peer = RawPeer(address)
    data = b"".join(parts)
    cut = random.randrange(len(data) + 1)  # type: ignore[attr-defined]
    try:
        peer.send(data[:cut])
        peer.send(data[cut:])
        peer.socket.settimeout(60)
        peer.ping()  # either an answer or the end of the connection; a timeout fails
    except (BrokenPipeError, ConnectionResetError):
        pass
    peer.close()
    assert not errors


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_server_answers_or_closes_after_random_first_bytes(fuzz_server: tuple[str, list[str]], data: bytes) -> None:
    address, errors = fuzz_server
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as peer:
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass
        except TimeoutError:
            raise
        except OSError:
            pass  # the server closed before we did, at any point
    assert not errors


def test_fuzzed_server_still_serves(fuzz_server: tuple[str, list[str]]) -> None:
    assert still_served(fuzz_server[0])
