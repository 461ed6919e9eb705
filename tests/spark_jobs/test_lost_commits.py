"""A Delta log whose newest file is empty or lost is noticed before anything is answered or written (R-03, R-43)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from history import shop
from lakehouse import Lakehouse, Source
from support.examples import spread

from binlake.audit.audit import Audit
from binlake.errors import LostRange
from binlake.lake.mutations import RowVersion
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.stages import encode

FEED = "files"
Damage = Callable[[Path], None]


def _empty(file: Path) -> None:
    file.write_bytes(b"")


DAMAGES: dict[str, Damage] = {"empty": _empty, "lost": Path.unlink}


class _Lake:
    """The history's windows but the last are merged and mirrored; the last one is only landed."""

    def __init__(self, root: Path, made: Path | None = None) -> None:
        history = shop()
        if made is not None:
            shutil.copytree(made, root, dirs_exist_ok=True)
        feed = {"name": FEED, "sink-uri": f"file://{root}/files?protocol=csv", "rules": ["shop.*"]}
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(history.workload), {"feed": [feed]})
        self.ctx = self.lakehouse.context()
        bounds = [Bounds(lo, hi) for lo, hi in zip([0, *history.cuts], history.cuts, strict=False)]
        *self.done, self.next = bounds
        if made is None:
            for window in self.done:
                self.lakehouse.land(window.lo, window.hi)
                run_stage("mirror", self.ctx, window)
            self.lakehouse.land_only(self.next.lo, self.next.hi)

    def newest(self, table: str) -> Path:
        folder = next(path for path in Path(self.ctx.paths.root).rglob("_delta_log") if path.parent.name == table)
        return folder / f"{DeltaTable(folder.parent).version():020}.json"

    def ask(self) -> list[RowVersion]:
        return Audit(self.ctx.paths).read_row_history("shop", "item", ["4"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; each test changes a copy."""
    root = tmp_path_factory.mktemp("made")
    _Lake(root)
    return root


@pytest.fixture
def lake(tmp_path: Path, made: Path) -> _Lake:
    return _Lake(tmp_path, made)


def test_ddl_that_is_lost_between_merge_and_the_next_stage_of_its_process_stops_that(tmp_path: Path) -> None:
    #
    lakehouse = Lakehouse(None, tmp_path / "lake", Source.of_workload((history := shop()).workload), {})
    ctx, window = lakehouse.context(), Bounds(0, history.cuts[0])
    lakehouse.land_only(window.lo, window.hi)
    merged = run_stage("merge", ctx, window)
    table = Path(ctx.paths.root) / "ddl"
    file = table / "_delta_log" / f"{DeltaTable(table).version():020}.json"
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(LostRange, match=r"merge has just written [1-9]"):
        run_stage("mirror", ctx, window, given=merged.derived)
    file.write_bytes(content)
    assert run_stage("mirror", ctx, window, given=merged.derived).state == "done"


@pytest.mark.parametrize(
    ("table", "damage"),
    # Each table and each damage once in `make test`.
    spread([("mutation", "empty"), ("mutation", "lost"), ("ddl", "lost"), ("ddl", "empty")], least=2),
)
def test_lost_merge_stops_every_reader_and_writer_until_it_is_there_again(lake: _Lake, table: str, damage: str) -> None:
    before, file = lake.ask(), lake.newest(table)
    content, last = file.read_bytes(), lake.done[-1]
    DAMAGES[damage](file)
    for _ in range(2):
        with pytest.raises(LostRange, match=f"`{table}`"):
            lake.ask()
        with pytest.raises(LostRange, match=f"`{table}`"):
            run_stage("merge", lake.ctx, lake.next)
        with pytest.raises(LostRange, match=f"`{table}`"):
            encode.run(lake.ctx, last, FEED)
    assert lake.newest(table) == file or damage == "lost"  # nothing took its place
    file.write_bytes(content)
    assert lake.ask() == before
    # Without a copy: the empty file is deleted, and the windows that the errors name are derived again.
    file.unlink()
    for _ in lake.done:
        try:
            assert lake.ask() == before
            break
        except LostRange as lost:
            lo, _, hi = lost.where["window"].partition("-")
            run_stage("merge", lake.ctx, Bounds(int(lo), int(hi)))
    assert lake.ask() == before
    run_stage("merge", lake.ctx, lake.next)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", ["item", "mirror_version"])
def test_mirror_that_lost_a_commit_is_not_continued(lake: _Lake, table: str, damage: str) -> None:
    run_stage("merge", lake.ctx, lake.next)
    DAMAGES[damage](lake.newest(table))
    with pytest.raises(LostRange):
        run_stage("mirror", lake.ctx, lake.next)


def test_empty_file_below_the_newest_is_noticed(lake: _Lake) -> None:
    file = lake.newest("mutation")
    _empty(file.with_name(f"{int(file.stem) - 1:020}.json"))
    with pytest.raises(LostRange, match="is empty") as refused:
        lake.ask()
    assert str(file.parent) in refused.value.where["file"]
