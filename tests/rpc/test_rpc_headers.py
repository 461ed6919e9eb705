"""Header blocks and gRPC's small formats: the decoder agrees with that of hpack; encoder and limits work."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.rpc import RpcError, Status, headers, messages
from binlake.rpc.frames import ConnectionFault
from binlake.rpc.headers import HeaderDecoder
from binlake.rpc.messages import Splitter
from binlake.rpc.request import Malformed, read

NAMES = st.sampled_from([b":path", b":method", b"content-type", b"grpc-timeout", b"x", b"a-name"]) | st.binary(
    max_size=8
)
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from([b"", b"POST", b"trailers"]) | st.binary(max_size=300)), max_size=8)


@given(st.lists(st.tuples(FIELDS, st.booleans(), st.sampled_from([None, 0, 64, 4096])), max_size=12))
def test_blocks_of_hpack_are_decoded_as_by_hpack(
    blocks: list[tuple[list[tuple[bytes, bytes]], bool, int]],
) -> None:
    encoder, ours, theirs = hpack.Encoder(), HeaderDecoder(1 << 20), hpack.Decoder(max_header_list_size=1 << 20)
    for fields, huffman, table in blocks:
        if table is not None:
            encoder.header_table_size = table
        block = encoder.encode(fields, huffman=huffman)
        assert ours.decode(block) == [tuple(field) for field in theirs.decode(block, raw=True)] == fields


@given(FIELDS)
def test_hpack_decodes_our_blocks(fields: list[tuple[bytes, bytes]]) -> None:
    block = headers.encode(fields)
    assert [tuple(field) for field in hpack.Decoder().decode(block, raw=True)] == fields
    assert HeaderDecoder(1 << 20).decode(block) == fields


@given(st.binary(max_size=60))
def test_random_bytes_are_fields_or_a_fault(block: bytes) -> None:
    try:
        HeaderDecoder(1000).decode(block)
    except ConnectionFault:
        return


def test_changes_stays_the_same_while_nothing_is_added() -> None:
    encoder, decoder = hpack.Encoder(), HeaderDecoder(1000)
    decoder.decode(encoder.encode([(b"x", b"1")]))
    changes = decoder.changes
    decoder.decode(encoder.encode([(b"x", b"1")]))
    assert decoder.changes == changes
    decoder.decode(encoder.encode([(b"x", b"2")]))
    assert decoder.changes > changes


def test_list_above_the_limit_returns_none() -> None:
    assert HeaderDecoder(100).decode(headers.encode([(b"x", bytes(100))])) is None


GOOD = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b"content-type", b"application/grpc")]


@pytest.mark.parametrize(
    "fields",
    [
        GOOD[:2],
        [*GOOD, (b":authority", b"x")],
        [GOOD[0], *GOOD],
        [*GOOD, (b"Upper", b"x")],
        [*GOOD, (b"connection", b"close")],
        [*GOOD, (b"te", b"gzip")],
        [(b":status", b"200"), *GOOD],
        [*GOOD, (b"content-length", b"x")],
        [*GOOD, (b"", b"x")],
    ],
)
def test_list_that_breaks_a_rule_is_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Malformed):
        read(fields)


def test_request_fields_are_parsed() -> None:
    found = read([*GOOD, (b"grpc-timeout", b"250m"), (b"grpc-encoding", b"gzip"), (b"a", b"1"), (b"a", b"2")])
    assert found is not None
    assert (found.path, found.grpc, found.gzip, found.timeout_s) == ("/a.B/C", True, True, 0.25)
    assert found.headers["a"] == "1, 2"
    unknown = read([*GOOD, (b"grpc-encoding", b"snappy")])
    assert unknown is not None
    assert unknown.refusal is not None
    assert unknown.refusal.status is Status.UNIMPLEMENTED


@given(st.floats(min_value=1e-6, max_value=1e7))
def test_written_timeout_is_never_shorter(seconds: float) -> None:
    value = messages.format_timeout(seconds)
    assert len(value) <= 9
    assert seconds * (1 - 1e-6) - 1e-6 <= messages.parse_timeout(value) <= seconds + max(1.0, seconds * 1e-3)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"1x", b"123456789S", b"-1S", b"1.5S"])
def test_malformed_timeout_is_an_error(value: bytes) -> None:
    with pytest.raises(RpcError, match="malformed grpc-timeout"):
        messages.parse_timeout(value)


@given(st.text(max_size=100))
def test_text_survives_its_encoding(text: str) -> None:
    quoted = messages.quote_text(text.encode(errors="replace").decode())
    assert quoted.isascii()
    assert messages.unquote_text(quoted) == text.encode(errors="replace").decode()


@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(0, 400), max_size=20), st.booleans())
def test_messages_are_split_correctly_however_bytes_arrive(sent: list[bytes], cuts: list[int], gzip: bool) -> None:
    data = b"".join(messages.encode_message(message, gzip=gzip) for message in sent)
    splitter, found, at = Splitter(1 << 20), list[bytes](), 0
    splitter.gzip = gzip
    for cut in [*sorted(cuts), len(data)]:
        found += splitter.feed([data[at:cut]])
        at = max(at, min(cut, len(data)))
    assert found == sent
    assert splitter.clean


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00\x04\x01", "larger than max"),
        (b"\x01\x00\x00\x00\x01x", "no known grpc-encoding"),
        (b"\x07\x00\x00\x00\x01x", "compressed flag 7"),
    ],
)
def test_unreadable_message_is_an_error(data: bytes, text: str) -> None:
    with pytest.raises(RpcError, match=text):
        Splitter(1024).feed([data])


def test_damaged_gzip_is_an_error() -> None:
    whole = messages.encode_message(b"x" * 1000, gzip=True)[5:]
    for data, text in [(b"nonsense", "damaged gzip"), (whole[:-4], "cut off")]:
        with pytest.raises(RpcError, match=text):
            messages.unpack(1, data, gzip=True, max_bytes=10_000)
    with pytest.raises(RpcError, match="larger than max"):
        messages.unpack(1, whole, gzip=True, max_bytes=999)
    assert messages.unpack(1, whole, gzip=True, max_bytes=1000) == b"x" * 1000
