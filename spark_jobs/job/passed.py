"""What a stage hands to the next one of its process, so that it need not read the lake.

Rule: a stage writes to the lake before it hands anything on, and a stage that is given nothing, or another window than
its own, reads the lake; so both ways give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlake.rows.schema import SchemaState
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.decoding import DecodedAhead
from binlake.spark_jobs.job.results import Bounds, StageResult
from binlake.target import TargetPosition
from binlake.window.derived import Merged


@dataclass(frozen=True)
class LandedWindow:
    """The rows of `binlog` of the window `bounds`, without transactions in chunks; `decoded`: those of `mutation`, if
    land's tasks have made them."""

    bounds: Bounds
    rows: tuple[Rows, ...]
    decoded: DecodedAhead | None = None


@dataclass(frozen=True)
class MergedWindow:
    """The rows of `mutation` of the window `bounds`, what merge sealed for it, and the source's schema at lo and hi."""

    bounds: Bounds
    merged: Merged
    rows: tuple[Rows, ...]
    schemas: tuple[SchemaState, SchemaState]


@dataclass(frozen=True)
class DerivedAhead:
    """The result of compact for the window of `merged`, derived for a target at `position`.

    `result.derived` has the statements if convert has derived them as well.
    """

    merged: MergedWindow
    position: TargetPosition
    result: StageResult


class CannotDeriveAhead(Exception):
    """A window must wait for the previous one, because a stage has to ask the target."""
