"""A large transaction of a source passes the feeder in parts: its memory does not follow the size (U-06, S0-07)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from binlake.rpc import RpcServer
from binlake.wire.binlog_pb2 import Binlog, Prewrite, PrewriteValue
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

CHILD = Path(__file__).with_name("large_transaction_child.py")
EVENTS = 12_000
MOST_MIB = 80  # 47 for any size; 580 for this one before it passed through files


@pytest.mark.long
def test_memory_does_not_follow_the_size_of_a_transaction(tmp_path: Path) -> None:
    got: list[tuple[int, int, int]] = []
    lock = threading.Lock()

    def write(message: bytes) -> bytes:
        binlog = Binlog.FromString(WriteBinlogReq.FromString(bytes(message)).payload)
        rows = [len(one.inserted_rows) for one in PrewriteValue.FromString(binlog.prewrite_value).mutations]
        with lock:
            got.append((binlog.tp, len(binlog.prewrite_value), sum(rows)))
        return WriteBinlogResp().SerializeToString()

    server = RpcServer()
    server.add_blocking("/binlog.Pump/WriteBinlog", write)
    server.listen_unix(tmp_path / "pump.sock")
    server.start()
    try:
        words = [sys.executable, CHILD, tmp_path / "pump.sock", tmp_path, EVENTS, "spooled"]
        path = os.pathsep.join([str(CHILD.parent), str(CHILD.parents[2])])
        done = subprocess.run(
            [str(word) for word in words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    finally:
        server.stop(grace_s=1)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    prewrites = [(size, rows) for tp, size, rows in got if tp == Prewrite]
    assert [rows for _, rows in prewrites] == [2, 2 * EVENTS]
    assert prewrites[1][0] > 90 << 20
    assert (after - before) >> 20 < MOST_MIB
