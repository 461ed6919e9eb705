"""Wire messages: fields, numbers and bytes equal the originals'."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet

from binlake.wire import binlog_pb2, build, cistern_pb2, pump_pb2

SAMPLES = Path(__file__).parent.parent / "fixtures" / "wire" / "samples"
PREWRITE_VALUE = "08 17 12 0d 08 2d 12 07 08 02 08 04 02 02 61 38 00"
FIELD = FieldDescriptor


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


# Byte vectors: tidb-binlog 1.6
PREWRITE = hexed(f"08 00 10 81 80 80 c8 d0 07 18 00 22 02 6b 31 2a 11 {PREWRITE_VALUE} 38 00 40 00")
COMMIT = hexed("08 01 10 81 80 80 c8 d0 07 18 82 80 a0 ce d0 07 22 02 6b 31 38 00 40 00")
FAKE = hexed("08 02 10 82 80 a0 ce d0 07 18 82 80 a0 ce d0 07 38 00 40 00")


def test_built_binlogs_equal_the_vectors_byte_for_byte() -> None:  # S0-13
    prewrite = build.build_prewrite(262144000001, b"k1", hexed(PREWRITE_VALUE))
    assert prewrite.SerializeToString() == PREWRITE
    assert build.build_commit(prewrite, 262157107202).SerializeToString() == COMMIT
    assert build.build_fake(262157107202).SerializeToString() == FAKE


@pytest.mark.parametrize("data", [PREWRITE, COMMIT, FAKE], ids=["prewrite", "commit", "fake"])
def test_vectors_round_trip(data: bytes) -> None:  # S0-13
    assert binlog_pb2.Binlog.FromString(data).SerializeToString() == data


def _message_of(name: str) -> type:
    for module in (pump_pb2, cistern_pb2, binlog_pb2):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"no message {name}")


SAMPLE_FILES = sorted(SAMPLES.glob("*.bin"))


@pytest.mark.parametrize("path", SAMPLE_FILES, ids=[path.stem for path in SAMPLE_FILES])
def test_recorded_messages_parse_and_serialise_byte_for_byte(path: Path) -> None:  # S0-13 S0-46
    data = path.read_bytes()
    message = _message_of(path.name.split(".")[0]).FromString(data)
    assert message.SerializeToString() == data
    payload = getattr(message, "payload", b"") or getattr(getattr(message, "entity", None), "payload", b"")
    if payload:
        assert binlog_pb2.Binlog.FromString(payload).SerializeToString() == payload


def test_recorded_samples_exist() -> None:
    assert len(SAMPLE_FILES) >= 30


def _fields(message: type) -> dict[str, tuple[int, int, bool]]:
    return {f.name: (f.number, f.type, f.is_repeated) for f in message.DESCRIPTOR.fields}


def test_binlog_has_the_published_fields() -> None:  # S0-13
    assert _fields(binlog_pb2.Binlog) == {
        "tp": (1, FIELD.TYPE_ENUM, False),
        "start_ts": (2, FIELD.TYPE_INT64, False),
        "commit_ts": (3, FIELD.TYPE_INT64, False),
        "prewrite_key": (4, FIELD.TYPE_BYTES, False),
        "prewrite_value": (5, FIELD.TYPE_BYTES, False),
        "ddl_query": (6, FIELD.TYPE_BYTES, False),
        "ddl_job_id": (7, FIELD.TYPE_INT64, False),
        "ddl_schema_state": (8, FIELD.TYPE_INT32, False),
    }
    types = dict(binlog_pb2.BinlogType.items())
    assert types == {"Prewrite": 0, "Commit": 1, "Rollback": 2, "PreDDL": 3, "PostDDL": 4}


def test_table_mutation_has_the_published_fields() -> None:  # S0-20
    assert _fields(binlog_pb2.TableMutation) == {
        "table_id": (1, FIELD.TYPE_INT64, False),
        "inserted_rows": (2, FIELD.TYPE_BYTES, True),
        "updated_rows": (3, FIELD.TYPE_BYTES, True),
        "deleted_ids": (4, FIELD.TYPE_INT64, True),
        "deleted_pks": (5, FIELD.TYPE_BYTES, True),
        "deleted_rows": (6, FIELD.TYPE_BYTES, True),
        "sequence": (7, FIELD.TYPE_ENUM, True),
    }
    kinds = dict(binlog_pb2.MutationType.items())
    assert kinds == {"Insert": 0, "Update": 1, "DeleteID": 2, "DeletePK": 3, "DeleteRow": 4}
    packed = binlog_pb2.TableMutation(sequence=[0, 1]).SerializeToString()
    assert packed == hexed("38 00 38 01"), "sequence is unpacked"


def test_prewrite_value_has_the_published_fields() -> None:  # S0-19
    assert _fields(binlog_pb2.PrewriteValue) == {
        "schema_version": (1, FIELD.TYPE_INT64, False),
        "mutations": (2, FIELD.TYPE_MESSAGE, True),
    }


def test_services_have_the_original_paths() -> None:  # S0-46 S0-53
    pump = pump_pb2.DESCRIPTOR.services_by_name["Pump"]
    assert pump.full_name == "binlog.Pump"
    assert [method.name for method in pump.methods] == ["WriteBinlog", "PullBinlogs"]
    assert cistern_pb2.DESCRIPTOR.services_by_name["Cistern"].full_name == "binlog.Cistern"


def test_unknown_field_is_preserved() -> None:  # S1-03
    data = PREWRITE + bytes([99 << 3 & 0x7F | 0x80, 99 << 3 >> 7, 7])
    message = binlog_pb2.Binlog.FromString(data)
    assert [field.field_number for field in UnknownFieldSet(message)] == [99]
    assert message.SerializeToString() == data


def test_payload_with_only_the_published_fields_is_complete() -> None:  # S1-03
    # The writer does not know ddl_job_id and ddl_schema_state, the last four bytes.
    bare = binlog_pb2.Binlog.FromString(PREWRITE[:-4])
    assert (bare.ddl_job_id, bare.ddl_schema_state) == (0, 0)
    assert build.build_commit(bare, 262157107202).SerializeToString() == COMMIT
