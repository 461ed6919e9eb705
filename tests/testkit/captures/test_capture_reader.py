"""Read a capture folder as streams, plain or gzipped; errors for damage name file and position."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pytest

from binlake.errors import ConfigError, WireError
from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.mark.parametrize("name", ["bank", "keys", "shard"])
def test_metadata_of_a_capture(name: str) -> None:
    capture = Capture(CAPTURES / name)
    assert capture.name == name
    counts: dict[str, int] = {"P": 0, "C": 0, "R": 0, "DDL_P": 0, "DDL_C": 0}
    for payload in capture.read_binlogs():
        message = pb.Binlog.FromString(payload)
        counts[("DDL_" if message.ddl_job_id else "") + "PCR"[message.tp]] += 1
    assert {k: v for k, v in counts.items() if v} == {k: v for k, v in capture.meta["counts"].items() if v}
    versions = [job["binlog"]["SchemaVersion"] for job in capture.read_jobs()]
    assert len(versions) == capture.meta["ddl_jobs"]
    assert versions == sorted(versions)
    assert [json.loads(text) for text in capture.read_job_texts()] == list(capture.read_jobs())


def test_states_are_grouped_by_commit_ts() -> None:
    states = list(Capture(CAPTURES / "bank").read_states())
    assert len({s.commit_ts for s in states}) == len(states)
    for state in states:
        assert state.databases == ["bank", "test"]
        names = {f"{db}.{table}" for db, table, _ in state.tables or ()}
        assert {c["table"] for c in state.contents} == names
    assert sum(len(s.contents) for s in states) + len(states) == Capture(CAPTURES / "bank").meta["state_lines"]


def test_replayed_states_are_empty_unless_recorded() -> None:
    assert list(Capture(CAPTURES / "keys").read_replayed_states()) == []
    assert Capture(CAPTURES / "keys").read_outcomes() is None


def folder(tmp_path: Path, **files: bytes) -> Capture:
    for name, content in ({"binlogs.bin": b""} | {k.replace("__", "."): v for k, v in files.items()}).items():
        (tmp_path / name).write_bytes(content)
    return Capture(tmp_path)


def test_plain_files_read_like_gzipped_ones(tmp_path: Path) -> None:
    record = struct.pack("<I", 3) + b"abc"
    capture = folder(
        tmp_path, binlogs__bin=record + record, decoded__jsonl__gz=gzip.compress(b'{"a":"\xe2\x80\xa8"}\n\n')
    )
    assert list(capture.read_binlogs()) == [b"abc", b"abc"]
    assert list(capture.read_decoded()) == [{"a": "\u2028"}]


def test_folder_without_binlogs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not contain a capture"):
        Capture(tmp_path)
    with pytest.raises(ConfigError, match=r"ddl_jobs.jsonl is missing"):
        list(folder(tmp_path).read_jobs())


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_truncated_record_error_names_the_offset(tmp_path: Path, cut: int) -> None:
    record = struct.pack("<I", 3) + b"abc"
    capture = folder(tmp_path, binlogs__bin=record + record[:cut])
    with pytest.raises(WireError, match=r"cut short .*binlogs.bin offset=7"):
        list(capture.read_binlogs())


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"a":"\xff"}'])
def test_bad_line_error_names_its_number(tmp_path: Path, line: bytes) -> None:
    capture = folder(tmp_path, decoded__jsonl=b"{}\n" + line + b"\n")
    with pytest.raises(WireError, match=r"decoded.jsonl line=2"):
        list(capture.read_decoded())


def test_a_state_without_commit_ts_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(WireError, match=r"lacks commit_ts .*line=1"):
        list(folder(tmp_path, states__jsonl=b'{"table":"a.b"}\n').read_states())


def test_damaged_gzip_error_names_the_file(tmp_path: Path) -> None:
    packed = gzip.compress(b"{}\n" * 1000)
    for broken in (packed[:-12], b"nothing like gzip"):
        capture = folder(tmp_path, decoded__jsonl__gz=broken)
        with pytest.raises(WireError, match=r"gzip file is damaged.*decoded.jsonl.gz"):
            list(capture.read_decoded())
