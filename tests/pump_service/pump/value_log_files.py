"""The files of a value log, and records in the original's format, for tests that write or damage them."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c

from binlake.pump_service.pump.record import MAGIC, Pointer
from binlake.pump_service.pump.storage import PumpStorage

OLD_HEADER = struct.Struct("<IQI")
OLD_FOOTER = struct.Struct("<qI")


def old_record(payload: bytes) -> bytes:
    """A record as the original writes it."""
    return OLD_HEADER.pack(MAGIC, len(payload), google_crc32c.value(payload)) + payload


def segment(folder: Path, fid: int = 0) -> Path:
    return folder / "value" / f"{fid:06d}.vlog"


def payloads_of(storage: PumpStorage) -> list[bytes]:
    return [payload for _, payload in storage._log.scan_from(Pointer(0, 0))]


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
