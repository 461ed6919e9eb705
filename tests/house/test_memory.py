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
@pytest.mark.parametrize(
    ("count", "large", "given"),
    [
        pytest.param(1000, 0, True, id="of a large process"),
        pytest.param(1000, 1 << 40, False, id="not of a small one"),
        pytest.param(3000, 1 << 40, True, id="if there is very much"),
        pytest.param(100, 0, False, id="not if there is little"),
    ],
)
def test_free_memory_is_given_back(monkeypatch: pytest.MonkeyPatch, count: int, large: int, given: bool) -> None:
    monkeypatch.setattr(memory, "_LARGE_BYTES", large)
    library = ctypes.CDLL(None)
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    library.malloc_trim(0)
    blocks = [library.malloc(100_000) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    # While the last one is in use, the allocator does not shrink by itself.
    for block in blocks[:-1]:
        library.free(block)
    before = _read_resident()
    give_memory_back()
    assert (before - _read_resident() > count * 80_000) is given
    library.free(blocks[-1])


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_find_function", lambda _: None)
    give_memory_back()
    memory.share_arenas()
