"""Tables of the lake that another hand restored to an older version: refused until they are restored back.

A RESTORE is a commit: the version rises, so it does not look like a lost commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from history import History, shop
from lakehouse import Lakehouse, Source
from support.examples import spread

from binlake.audit.audit import Audit
from binlake.errors import LostRange
from binlake.lake.continuity import LANDED_TABLES, VERSIONS, read_versions, require_all_windows
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowEvent
from binlake.mirror import MirrorVersions
from binlake.mirror.rows import read_mirror_texts
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.stagerun import run_stage

Locate = Callable[[LakePaths], str]
TABLES: dict[str, tuple[str, Locate]] = {
    "binlog": ("land", lambda paths: paths.locate_table("binlog")),
    "schema_change": ("land", lambda paths: paths.locate_table("schema_change")),
    "mutation": ("merge", lambda paths: paths.locate_table("mutation")),
    "ddl": ("merge", lambda paths: paths.locate_table("ddl")),
    "mirror_version": ("mirror", lambda paths: paths.locate_table("mirror_version")),
    "shop/item": ("mirror", lambda paths: paths.locate_mirror("shop", "item")),
}
"""By name, the stage that writes the table, and where it is."""


class Made:
    """A lake with the first two of three windows, merged and mirrored."""

    def __init__(self, root: Path, history: History) -> None:
        self.history = history
        self.lakehouse = Lakehouse(None, root / "lake", Source.of_workload(history.workload))
        self.ctx: StageContext = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in zip([0, *history.cuts], history.cuts, strict=False)]

    def run(self, window: int) -> None:
        bounds, log = self.windows[window], self.ctx.windows
        if (bounds.lo, bounds.hi) not in log.list_landed():
            # What the stage land does before and after it writes.
            require_all_windows(self.ctx.paths, log, ("land",))
            self.lakehouse.land_only(bounds.lo, bounds.hi)
            manifest = log.read_manifest(bounds.lo, bounds.hi)
            assert manifest is not None
            detail = {VERSIONS: read_versions(self.ctx.paths, LANDED_TABLES)}
            log.record(WindowEvent("land", bounds.lo, bounds.hi, "done", detail=detail, manifest=manifest.to_json()))
        if (log.find_greatest_hi("merge") or 0) < bounds.hi:
            run_stage("merge", self.ctx, bounds)
        run_stage("mirror", self.ctx, bounds)

    def read_items(self) -> list[tuple[str | None, ...]]:
        version = MirrorVersions(self.ctx.paths).read_latest()["shop", "item"]
        table = SchemaHistory(self.ctx.paths).read_state_at(version.hi).find("shop", "item")
        assert table is not None
        data = DeltaTable(self.ctx.paths.locate_mirror("shop", "item"), version=version.delta_version)
        return sorted(
            zip(*read_mirror_texts(table, data.to_pyarrow_dataset().to_table()).values(), strict=True), key=str
        )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History]:
    """Made once; each test changes its own copy."""
    root, history = tmp_path_factory.mktemp("kept"), shop()
    made = Made(root, history)
    made.run(0)
    made.run(1)
    return root, history


@pytest.fixture
def made(kept: tuple[Path, History], tmp_path: Path) -> Made:
    shutil.copytree(kept[0], tmp_path / "copy")
    return Made(tmp_path / "copy", kept[1])


@pytest.mark.parametrize("table", spread(list(TABLES), least=4))
def test_restored_table_is_refused_until_it_is_restored_back(made: Made, table: str) -> None:
    place = TABLES[table][1](made.ctx.paths)
    own = DeltaTable(place).version()
    DeltaTable(place).restore(max(own - 2, 0))
    for _ in range(2):
        with pytest.raises(LostRange, match=f"`{table}` was restored to an older version") as refused:
            made.run(2)
        assert f"version {own}" in refused.value.hint
    if table in ("mutation", "ddl"):
        with pytest.raises(LostRange, match="was restored"):
            Audit(made.ctx.paths).read_row_history("shop", "item", ["4"])
    DeltaTable(place).restore(own)
    made.run(2)
    assert len(made.read_items()) == len(made.history.workload.rows["shop", "item"])


def test_older_window_log_lands_and_merges_again_without_a_second_copy(made: Made) -> None:
    place = made.ctx.paths.locate_table("window")
    versions = [commit["version"] for commit in DeltaTable(place).history()]
    before = len(made.ctx.windows.list_landed())
    DeltaTable(place).restore(next(v for v in versions if _count_landed(place, v) == before - 1))
    made.windows[1:] = [Bounds(made.windows[1].lo, made.windows[2].hi)]
    made.run(1)
    assert len(made.read_items()) == len(made.history.workload.rows["shop", "item"])
    changes = Audit(made.ctx.paths).read_row_history("shop", "item", ["3"])
    assert len(changes) == len({change.commit_ts for change in changes}) > 1


def _count_landed(place: str, version: int) -> int:
    rows = DeltaTable(place, version=version).to_pyarrow_table().to_pylist()
    return len({row["hi"] for row in rows if row["stage"] == "land"})
