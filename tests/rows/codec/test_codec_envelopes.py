"""The envelopes of binlogs that land needs: reading them by columns and by protobuf gives the same for any bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from binlake.rows.codec import envelopes
from binlake.rows.codec.envelopes import parse_binlog, read_envelopes
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

NUMBERS = st.sampled_from([0, 1, 127, 128, 470_614_287_839_920_132, (1 << 63) - 1])


@st.composite
def binlogs(draw: st.DrawFn) -> bytes:
    row = st.binary(max_size=20)
    mutations = [
        pb.TableMutation(table_id=draw(NUMBERS), inserted_rows=[draw(row)], sequence=[pb.Insert])
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 3, 20])))
    ]
    value = pb.PrewriteValue(schema_version=draw(NUMBERS), mutations=mutations).SerializeToString()
    job_id = draw(st.sampled_from([0, 0, 0, 5, 300]))
    prewrite = build.build_prewrite(
        draw(NUMBERS), draw(st.sampled_from([b"", b"key", b"k" * 200])), b"" if job_id else value,
        ddl_query=b"alter table t add \xc3\xa4 int" if job_id else b"",
        ddl_job_id=job_id, ddl_schema_state=draw(st.sampled_from([0, 1, 6])),
    )  # fmt: skip
    whole = build.build_commit(prewrite, draw(NUMBERS))
    if prewrite.prewrite_value:
        whole.prewrite_value = prewrite.prewrite_value
    found = bytearray(whole.SerializeToString())
    # Some are damaged, truncated or too long.
    damage = draw(st.sampled_from(["", "", "", "flip", "cut", "more"]))
    if damage == "flip":
        found[draw(st.integers(0, min(40, len(found) - 1)))] ^= 1 << draw(st.integers(0, 7))
    elif damage == "cut":
        del found[draw(st.integers(0, len(found) - 1)) :]
    elif damage == "more":
        found += draw(st.binary(min_size=1, max_size=12))
    return bytes(found)


@pytest.mark.long
@given(st.lists(binlogs(), max_size=12), st.integers(0, 3))
@example([b""], 0)
@settings(max_examples=examples(300), deadline=None)
def test_reading_by_columns_equals_protobuf(payloads: list[bytes], skipped: int) -> None:  # S0-14, S0-19
    array = pa.array(payloads, pa.binary())[skipped:]
    found = read_envelopes(array)
    for row, payload in enumerate(payloads[skipped:]):
        binlog, version = parse_binlog(payload)
        if version is None and found.version[row]:
            # Damage inside a mutation is not checked here; merge reports it.
            assert binlog.prewrite_value.startswith(b"\x08")
            continue
        assert found.version[row] == (version or 0)
        assert found.job_id[row] == binlog.ddl_job_id
        assert found.state[row] == binlog.ddl_schema_state
        expected = binlog.ddl_query.decode("utf-8", "replace") if binlog.ddl_job_id > 0 else None
        assert found.query.get(row) == expected


def test_binlogs_of_tidb_are_read_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [pb.TableMutation(table_id=45, inserted_rows=[b"row"], sequence=[pb.Insert])] * 5
    value = pb.PrewriteValue(schema_version=77, mutations=rows).SerializeToString()
    start = 470_614_287_839_920_132
    whole = build.build_commit(build.build_prewrite(start, b"t\x80" * 9, value), start + 9)
    whole.prewrite_value = value
    asked: list[bytes] = []
    monkeypatch.setattr(envelopes, "parse_binlog", asked.append)
    assert read_envelopes(pa.array([whole.SerializeToString()] * 3)).version.tolist() == [77] * 3
    assert not asked
