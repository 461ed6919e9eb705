"""Pull messages encoded by columns equal, byte for byte, those that protobuf encodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from binlake.pump_service.pump import batches
from binlake.wire.pump_pb2 import PullBinlogResp

TS = st.integers(1 << 56, (1 << 63) - 1) | st.integers(0, 1 << 60)
BATCHES = st.lists(st.tuples(TS, TS, st.binary(max_size=20) | st.integers(0, 40_000).map(bytes)), max_size=20)


@given(BATCHES)
def test_a_framed_batch_is_its_messages_with_their_prefixes(batch: list[batches.Transaction]) -> None:
    expected = [batches.encode_message(*entity) for entity in batch]
    assert batches.frame_batch(batch) == b"".join(b"\x00" + len(one).to_bytes(4, "big") + one for one in expected)
    assert b"".join(piece for entity in batch for piece in batches.frame_in_pieces(entity)) == batches.frame_batch(
        batch
    )
    for message, (start_ts, commit_ts, payload) in zip(expected, batch, strict=True):
        entity = PullBinlogResp.FromString(message).entity
        assert (entity.meta.startTs, entity.meta.commitTs, entity.payload) == (start_ts, commit_ts, payload)
        assert entity.HasField("pos")


@given(st.lists(st.tuples(st.integers(1 << 56, (1 << 63) - 1), st.integers(1 << 56, (1 << 63) - 1)), min_size=8))
def test_real_timestamps_are_encoded_by_columns(ts: list[tuple[int, int]]) -> None:
    batch = [(start_ts, commit_ts, b"p" * number) for number, (start_ts, commit_ts) in enumerate(ts)]
    expected = [batches.encode_message(*entity) for entity in batch]
    assert batches.frame_batch(batch) == b"".join(b"\x00" + len(one).to_bytes(4, "big") + one for one in expected)
