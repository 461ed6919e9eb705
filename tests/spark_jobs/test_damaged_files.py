"""A damaged or missing data file of the lake is one clear line that names it, in every command and stage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from history import shop
from lakehouse import Lakehouse, Source
from pyarrow.lib import ArrowInvalid

from binlake import cli
from binlake.audit.audit import Audit
from binlake.errors import BinlakeError, LostRange, Transient
from binlake.lake import damage
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.failures import translate
from binlake.spark_jobs.job.stagerun import run_stage


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _scribble(file: Path) -> None:
    # Between the magic bytes and the footer: the data pages of the first columns.
    with file.open("r+b") as opened:
        opened.seek(4)
        opened.write(b"\xff" * min(400, file.stat().st_size // 3))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": _empty, "half": _halve, "scribbled": _scribble, "missing": Path.unlink,
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StageContext:
    """A merged and mirrored lake; each test puts back the file that it damages."""
    history = shop()
    root = tmp_path_factory.mktemp("made")
    lakehouse = Lakehouse(None, root / "lake", Source.of_workload(history.workload))
    for lo, hi in zip([0, *history.cuts], history.cuts, strict=False):
        bounds = lakehouse.land(lo, hi)
        run_stage("mirror", lakehouse.context(), bounds)
    (root / "r.toml").write_text(f'name = "demo"\n[lake]\npath = "{root}/lake"\n')
    return lakehouse.context()


def _files(path: str) -> list[Path]:
    return [Path(unquote(uri.removeprefix("file://"))) for uri in DeltaTable(path).file_uris()]


def _read_rows(paths: LakePaths) -> object:
    return Audit(paths).read_row_history("shop", "item", ["4"])


def _read_mirror(paths: LakePaths) -> object:
    audit = Audit(paths)
    return [*audit.read_base(audit.look_up_base_version("shop", "item", audit.read_merged_range()[1]))]


READERS: dict[str, tuple[Callable[[LakePaths], str], Callable[[LakePaths], object]]] = {
    "mutation": (lambda paths: paths.locate_table("mutation"), _read_rows),
    "ddl": (lambda paths: paths.locate_table("ddl"), _read_rows),
    "window": (lambda paths: paths.locate_table("window"), lambda paths: Audit(paths).read_merged_range()),
    "item": (lambda paths: paths.locate_mirror("shop", "item"), _read_mirror),
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("table", READERS)
def test_reader_names_the_damaged_file(
    made: StageContext, table: str, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.lake.controlrows._cached", {})
    place, read = READERS[table]
    file = _files(place(made.paths))[-1]
    content = file.read_bytes()
    DAMAGES[how](file)
    try:
        with pytest.raises(LostRange) as refused:
            read(made.paths)
        if (table, how) != ("item", "missing"):  # a mirror's missing file is beyond the retention
            assert refused.value.where == {"file": str(file)}
            assert f"`{table}` is damaged" in refused.value.message
        if table == "mutation":
            toml = Path(made.paths.root).parents[1] / "r.toml"
            assert cli.run(["audit", "row", "shop.item", "4", "--replication", str(toml)]) == 1
            printed = capsys.readouterr().err
            assert printed.startswith("error: ")
            assert printed.count("\n") == 1
            assert str(file) in printed
    finally:
        file.write_bytes(content)
    assert read(made.paths)


def test_stage_that_meets_a_damaged_landed_file_names_it(made: StageContext) -> None:
    bounds = Bounds(*made.windows.list_landed()[-1])
    file = _files(made.paths.locate_table("binlog"))[0]
    content = file.read_bytes()
    try:
        for how in ("empty", "half", "missing"):
            DAMAGES[how](file)
            with pytest.raises(LostRange, match="`binlog` is damaged") as refused:
                run_stage("merge", made, bounds)
            assert refused.value.where == {"file": str(file)}
            file.write_bytes(content)
    finally:
        file.write_bytes(content)
    # The event that the pages show is not a fault of the program.
    event = made.windows.read_last_events(("failure",), 1)[0]
    assert json.loads(event["detail"])["error"] == "LostRange"


RED = "Generic LocalFileSystem error\n   \x1b[31m↳\x1b[0m Requested range was invalid\n  \x1b[31m↳\x1b[0m Wanted 9\n"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(RED), LostRange, "a file of the lake is damaged: Requested range was invalid: Wanted 9"),
        (
            DeltaError(
                "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file:"
                " No space left on device (os error 28)"
            ),
            BinlakeError,
            "the lake's storage fails: Unable to copy data to file: No space left on device",
        ),
        (
            DeltaError("Cast error: Cannot cast string 'secret' to value"),
            BinlakeError,
            "the lake's storage fails: Cast",
        ),
        (ArrowInvalid("Parquet magic bytes not found in footer"), LostRange, "a file of the lake is damaged: Parquet"),
        (ArrowInvalid("Column 'x' not in schema"), None, ""),
        (ConnectionRefusedError(111, "Connection refused"), None, ""),
        (ZeroDivisionError(), None, ""),
    ],
)
def test_storage_errors_are_plain_text_in_a_stage(error: Exception, kind: Any, text: str) -> None:
    found = translate(error)
    if kind is None:
        assert found is None
        return
    assert type(found) is kind
    assert str(found).startswith(text)
    assert "\x1b" not in str(found)
    assert "secret" not in str(found)
    told = translate(error, "/lakes/demo")
    assert told is not None
    assert (type(told), told.where) == (kind, {"lake": "/lakes/demo"})


def test_real_error_of_delta_rs_has_no_colours(tmp_path: Path) -> None:
    import pyarrow as pa

    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"a": list(range(1000))}))
    _empty(_files(path)[0])
    with pytest.raises(OSError, match="Generic LocalFileSystem") as raw:
        DeltaTable(path).to_pyarrow_table()
    assert "\x1b" in str(raw.value)
    assert "\x1b" not in str(translate(raw.value))


def test_full_disk_is_one_error_before_anything_is_written(made: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage.os, "statvfs", lambda _: SimpleNamespace(f_blocks=1 << 30, f_bavail=1 << 20, f_frsize=1))
    before = made.windows.read_events()
    with pytest.raises(Transient, match="has 1 MiB left"):
        run_stage("merge", made, Bounds(*made.windows.list_landed()[-1]))
    monkeypatch.undo()
    assert made.windows.read_events() == before


def test_mount_that_does_not_tell_its_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage.os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=512))
    damage.require_space(str(tmp_path))
