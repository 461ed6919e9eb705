"""A lake whose windows are merged and mirrored, shared by the tests that read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from history import History, pairs, plain, shop
from lakehouse import Lakehouse, Source
from pyspark.sql import SparkSession

from binlake.lake.schemas import SchemaHistory
from binlake.mirror import MirrorVersions
from binlake.mirror.rows import read_mirror_texts
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.stages import mirror


class Mirrored:
    """The history's windows in a lake with their mirrors; the second window's first try dies before its record."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.history: History = shop()
        pairs(self.history)
        self.lakehouse = Lakehouse(spark, root, Source.of_workload(self.history.workload))
        self.ctx: StageContext = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in zip([0, *self.history.cuts], self.history.cuts, strict=False)]
        self.after: list[dict[str, Any]] = []
        for number, bounds in enumerate(self.windows):
            self.lakehouse.land(bounds.lo, bounds.hi)
            if number == 1:
                self._die_before_record(bounds)
            mirror.run(self.ctx, bounds)
            self.after.append(self.tables())

    def _die_before_record(self, bounds: Bounds) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MirrorVersions, "record", power_cut)
            with pytest.raises(ConnectionAbortedError):
                mirror.run(self.ctx, bounds)

    def tables(self) -> dict[tuple[str, str], Any]:
        """All mirrors that are not dropped, as texts."""
        return read_mirrors(self.ctx)


def read_mirrors(ctx: StageContext) -> dict[tuple[str, str], Any]:
    """All mirrors of a lake that are not dropped, as texts."""
    latest = MirrorVersions(ctx.paths).read_latest()
    at = SchemaHistory(ctx.paths)
    found = {}
    for name, version in latest.items():
        if not version.dropped:
            table = at.read_state_at(version.hi).find(*name)
            assert table is not None
            data = DeltaTable(ctx.paths.locate_mirror(*name), version=version.delta_version)
            texts = read_mirror_texts(table, data.to_pyarrow_dataset().to_table())
            found[name] = plain([dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)])
    return found


def power_cut(*_: object) -> None:
    raise ConnectionAbortedError("power cut")
