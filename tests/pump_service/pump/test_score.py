"""The inputs of the score: load per core, used disk, and the part of the disk that this pump's binlogs take."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from binlake.pump_service.pump.membership import Usage, Weights, compute_score, measure_usage

MIB = 1 << 20


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Three files of binlogs, and an index, which does not count."""
    for name, size in (
        ("value/000.vlog", MIB),
        ("value/001.vlog", 3 * MIB),
        ("value/002.vlog", 10),
        ("index/log", MIB),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
    return tmp_path


def test_usage_is_computed_from_load_disk_and_stored_bytes(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # S0-31
    # 400 blocks are free, of which a process that is not root may use 250; blocks are counted in f_frsize.
    disk = SimpleNamespace(f_bsize=MIB, f_frsize=4096, f_blocks=10_000, f_bfree=4_000, f_bavail=2_500)
    monkeypatch.setattr(os, "statvfs", lambda path: disk if path == data_dir else None)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 50.0, 70.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    taken = sum(path.stat().st_blocks * 512 for path in (data_dir / "value").iterdir())
    assert taken >= 4 * MIB
    assert measure_usage(data_dir) == Usage(load=0.75, disk=0.75, stored=taken / (10_000 * 4096))


def test_a_system_without_a_core_or_block_count_still_has_a_score(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bsize=4096, f_frsize=4096, f_blocks=0, f_bfree=0, f_bavail=0)
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    usage = measure_usage(data_dir)
    assert (usage.load, usage.disk) == (0.5, 1.0)
    assert 1 <= compute_score(usage, Weights()) <= 100


def test_added_and_removed_binlogs_change_the_stored_bytes(data_dir: Path) -> None:
    before = measure_usage(data_dir).stored
    assert 0 < before < 1
    (data_dir / "value" / "001.vlog").unlink()
    assert measure_usage(data_dir).stored < before / 2
