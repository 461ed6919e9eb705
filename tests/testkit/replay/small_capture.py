"""Writes small captures."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from binlake.testkit.captures.capture import Capture
from binlake.wire import binlog_pb2 as pb


def write_capture(
    folder: Path,
    binlogs: Iterable[tuple[int, int, int]],
    *,
    jobs: Sequence[object] = (),
    outcomes: object = None,
    decoded: Sequence[object] = (),
    tail: bytes = b"",
) -> Capture:
    """A capture of (type, start_ts, commit_ts) binlogs; the primary key of a transaction is its start_ts in text."""
    data = bytearray()
    for kind, start, commit in binlogs:
        binlog = pb.Binlog(tp=kind, start_ts=start, commit_ts=commit, prewrite_key=str(start).encode())
        payload = binlog.SerializeToString()
        data += struct.pack("<I", len(payload)) + payload
    (folder / "binlogs.bin").write_bytes(bytes(data) + tail)
    (folder / "ddl_jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    (folder / "decoded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in decoded))
    (folder / "meta.json").write_text(json.dumps({"case": "small", "version": "8.0.11-TiDB-v7.5.0"}))
    if outcomes is not None:
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
    return Capture(folder)
