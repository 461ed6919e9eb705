"""Reading a Delta table does not crash the process at its end, and works for every path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from binlake.lake.opentable import open_dataset

_READ = """
import sys
from deltalake import DeltaTable
from binlake.lake.opentable import open_dataset
print(open_dataset(DeltaTable(sys.argv[1])).to_table().num_rows)
"""


def _write(place: Path, files: int) -> None:
    for number in range(files):
        write_deltalake(place, pa.table({"n": list(range(number * 10, number * 10 + 10))}), mode="append")


@pytest.mark.parametrize("name", ["plain", "a b", "100%", "ünï/ço#de?", "x=1+2"])
def test_table_is_found_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    _write(tmp_path / name, 2)
    table = DeltaTable(tmp_path / name)
    assert sorted(open_dataset(table).to_table()["n"].to_pylist()) == list(range(20))


def test_partitions_are_columns(tmp_path: Path) -> None:
    rows = pa.table({"day": ["2026-11-21", "a b/c%"], "n": [1, 2]})
    write_deltalake(tmp_path / "t", rows, partition_by=["day"])
    found = open_dataset(DeltaTable(tmp_path / "t")).to_table(columns=["day", "n"]).sort_by("n")
    assert found.to_pylist() == rows.to_pylist()


def test_old_version_is_read_unchanged(tmp_path: Path) -> None:
    _write(tmp_path / "t", 2)
    assert open_dataset(DeltaTable(tmp_path / "t", version=0)).count_rows() == 10


@pytest.mark.process
def test_program_that_has_read_a_table_ends_normally(tmp_path: Path) -> None:
    # With delta-rs's own file system, most such programs abort at the end (status 134).
    _write(tmp_path / "t", 12)
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", _READ, str(tmp_path / "t")], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.strip()) == (0, "120"), done.stderr
