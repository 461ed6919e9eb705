"""Which DDL convert accepts if a table may be set aside (U-16); no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from support.tabledefs import col, primary, table

from binlake.config.servers import TargetSection
from binlake.ddl.definitions import LandedDdl
from binlake.errors import TargetRefused
from binlake.rows.schema.state import DdlSide
from binlake.spark_jobs.stages import convert
from binlake.statements.ddlsteps import RefusedStatement

SIDES = DdlSide((), (table("t", col("id"), keys=(primary("id"),), db="app"),))
SEQUENCE = "CREATE SEQUENCE `t`"


class Cut(NamedTuple):
    """The part of a sink's window that convert reads here."""

    cuts: tuple[LandedDdl, ...]


def test_inexpressible_ddl_stops_only_if_its_table_may_not_be_set_aside() -> None:
    window: Any = Cut((LandedDdl(7, 7, 6, 1, 1, 34, "app", "t", SEQUENCE, SEQUENCE, "apply", "", SIDES, SIDES),))
    ctx: Any = SimpleNamespace(windows=SimpleNamespace(list_landed=lambda _: [(0, 9)]))
    stop, policy = TargetSection(db_type="mysql"), TargetSection(db_type="mysql", on_table_error="set-aside")
    with pytest.raises(TargetRefused, match=r"cannot be expressed.*`binlake table aside`"):
        convert._build_ddl_batches(ctx, window, stop, {("app", "other")})
    [by_policy], _ = convert._build_ddl_batches(ctx, window, policy, ())
    assert convert._build_ddl_batches(ctx, window, stop, {("app", "t")}) == ([by_policy], 0)
    assert (by_policy.segment, by_policy.kind) == (1, "ddl")
    refusal = RefusedStatement.find_in(by_policy.sql[-1])
    assert refusal is not None
    assert refusal.why.startswith("a DDL cannot be expressed in mysql")
