"""A process gives freed memory back to the system, which the C library would keep."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from binlake.base import memory
from binlake.base.memory import give_memory_back

MIB = 1 << 20


def _read_resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


@pytest.mark.skipif(memory._find_function("mallinfo2") is None, reason="not GNU's C library")
def test_free_memory_is_given_back() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [library.malloc(100_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    # While the last one is in use, the allocator does not shrink by itself.
    for block in blocks[:-1]:
        library.free(block)
    before = _read_resident()
    give_memory_back()
    assert before - _read_resident() > 80 * MIB
    library.free(blocks[-1])


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_find_function", lambda _: None)
    give_memory_back()
    memory.share_arenas()
