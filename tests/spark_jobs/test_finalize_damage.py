"""finalize names the lake's missing or damaged table before it touches the target; no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from binlake.config import Replication
from binlake.ddl.definitions import Segments
from binlake.errors import LostRange
from binlake.lake.paths import LakePaths
from binlake.lake.tables import DDL
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import finalize
from binlake.window.derived import CompactManifest, Merged
from binlake.window.manifest import ApplyManifest

BOUNDS = Bounds(10, 20)
COMPACTED = CompactManifest("demo", "sql", 10, 20, False, 4, Merged(4, 1, True, ("10-20",)))
MANIFEST = ApplyManifest(
    "demo", "sql", 1, 10, 20, "c", "safe", "d", "ch", "st", 1, 4, 9, ("10-20",), (), COMPACTED.compute_digest()
)


def no_spark() -> Any:
    raise AssertionError("finalize needs no Spark")


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    """A sealed window with one DDL; the target does not exist."""
    raw = {"name": "demo", "lake": {"path": str(tmp_path)}, "target": {"db-type": "mariadb", "port": 1}}
    replication = Replication.model_validate(raw)
    log = WindowLog(LakePaths.of(replication))
    log.record(WindowEvent("compact", 10, 20, "done", sink="sql", manifest=COMPACTED.to_json()))
    log.record(WindowEvent("convert", 10, 20, "done", manifest=MANIFEST.to_json()))
    numbers = {column.name for column in DDL.columns if column.type in ("INT", "BIGINT")}
    row = {name: 15 if name in numbers else "x" for name in DDL.list_column_names()}
    write_deltalake(LakePaths.of(replication).locate_table("ddl"), pa.Table.from_pylist([row]))
    return StageContext(replication, "run", no_spark)


def parquet(ctx: StageContext, table: str) -> Path:
    return next(Path(ctx.paths.locate_table(table)).rglob("*.parquet"))


@pytest.mark.parametrize("table", ["window", "ddl"])
@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_missing_or_truncated_file_is_reported_with_its_table(ctx: StageContext, table: str, how: str) -> None:
    # S3-13
    file = parquet(ctx, table)
    if how == "missing":
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(LostRange, match=f"table `{table}`") as caught:
        finalize.run(ctx, BOUNDS)
    assert caught.value.where["window"] == "10-20"


@pytest.mark.parametrize("step", ["read_statements", "segments"])
def test_truncated_statement_file_is_reported(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    # S3-13: found when reading the index, or the first segments
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 and no more")

    def read(*_: object) -> Any:
        return pq.read_table(torn)

    window = SimpleNamespace(segments=Segments(10, 20, ()), with_shapes=lambda _: window)
    statements = SimpleNamespace(compute_digest=lambda: MANIFEST.statement, list_segments=read, window=window)
    monkeypatch.setattr(finalize, "read_sql_window", lambda *_: window)
    monkeypatch.setattr(finalize, "read_statements", read if step == "read_statements" else lambda *_: statements)
    with pytest.raises(LostRange, match="table `statement`"):
        finalize.run(ctx, BOUNDS)
