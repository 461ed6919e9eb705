"""A process gives freed memory back to the system, which the C library would keep."""

from __future__ import annotations

import subprocess
import sys

import pytest

from binlake.common import process
from binlake.common.process import give_memory_back

# In a process of its own: what other tests have freed would count.
_FREE = """
import ctypes, sys
from pathlib import Path
from binlake.common import process

def read_resident():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096

count, process._LARGE_BYTES = int(sys.argv[1]), int(sys.argv[2])
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(100_000) for _ in range(count)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
# While the last one is in use, the allocator does not shrink by itself.
for block in blocks[:-1]:
    library.free(block)
before = read_resident()
process.give_memory_back()
print(before - read_resident() > count * 80_000)
"""


@pytest.mark.skipif(process._find_function("mallinfo2") is None, reason="not GNU's C library")
@pytest.mark.parametrize(
    ("count", "large", "given"),
    [
        pytest.param(1000, 0, True, id="of a large process"),
        pytest.param(1000, 1 << 40, False, id="not of a small one"),
        pytest.param(3000, 1 << 40, True, id="if there is very much"),
        pytest.param(100, 0, False, id="not if there is little"),
    ],
)
def test_free_memory_is_given_back(count: int, large: int, given: bool) -> None:
    command = [sys.executable, "-c", _FREE, str(count), str(large)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{given}\n"


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_find_function", lambda _: None)
    give_memory_back()
    process.share_arenas()
