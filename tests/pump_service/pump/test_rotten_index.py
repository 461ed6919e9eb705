"""A block of the index is damaged while a pump runs: the error says what to do, like the error at a start."""

from __future__ import annotations

from pathlib import Path

import plyvel
import pytest

from binlake.errors import Permanent
from binlake.pump_service.pump.index import PumpIndex, encode_ts_key

KEYS = 20_000


def test_a_damaged_block_is_reported_with_a_hint(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    database = plyvel.DB(str(folder), create_if_missing=True)
    for ts in range(1, KEYS):
        database.put(encode_ts_key(ts), b"%016d" % ts)
    database.compact_range()
    database.close()
    for table in folder.glob("*.ldb"):
        data = bytearray(table.read_bytes())
        data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
        table.write_bytes(data)
    index = PumpIndex(folder)
    try:
        with pytest.raises(Permanent, match="index is damaged") as caught:
            index.read_batch(0, KEYS, KEYS)
        assert "rebuilt from the value log" in str(caught.value)
    finally:
        index.close()
