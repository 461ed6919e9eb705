"""DDL against a model: databases with random DDL, names, zones and partitions, and rows that run ahead of their DDL.

All from one seed. The target's tables, columns and rows are compared with the model's at each checkpoint between
windows (docs/understand/apply-model.md describes what is drawn).
"""

from __future__ import annotations

import os

import pytest
from ddlrun import SHAPE, DdlModel, ddl_brought_down
from modelshards import failures_of

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

PARTS, SEEDS = 2, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_whole_databases_equal_the_source_after_any_ddl(ddl_model: DdlModel, part: int) -> None:
    # U-10, R-04, R-18, R-19, R-28, R-29, S0-60 to S0-64, S4-46
    if "BINLAKE_DDL_SEED" in os.environ:
        ddl_brought_down(ddl_model, [int(os.environ["BINLAKE_DDL_SEED"])] if part == 0 else [])
        return
    ddl_brought_down(ddl_model, range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS))


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_many_more_seeds_of_ddl() -> None:
    count, first = int(os.environ.get("MODEL_SEEDS", 20_000)), int(os.environ.get("BINLAKE_DDL_SEED", 1_000_000))
    failed = failures_of(first, count, shards=os.cpu_count() or 1, ddl=SHAPE)
    assert not failed, "\n".join(failed)
