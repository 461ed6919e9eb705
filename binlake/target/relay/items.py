"""What the records of a window say, as JSON: its manifest, its batches, its segments (commit_ts as decimal strings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.statements.batch import StatementBatch
from binlake.statements.digests import batch_to_row, checked_batch_from_row
from binlake.target.definitions.definitions import Expected
from binlake.target.segments import SegmentPlan
from binlake.window.manifest import ApplyManifest

FORMAT = 1

Item = dict[str, Any]


def head(manifest: ApplyManifest, part: int) -> Item:
    """The first record of every file: which window, which of its files (from 1)."""
    return {"kind": "window", "format": FORMAT, "part": part, "manifest": manifest.to_json()}


def batch_to_item(batch: StatementBatch) -> Item:
    """One batch."""
    return {"kind": "batch", **_shown(batch)}


def end(parts: int, batches: int, segments: list[SegmentPlan]) -> Item:
    """The last record of a window's last file: nothing is missing before it."""
    return {"kind": "end", "parts": parts, "batches": batches, "segments": [_segment(plan) for plan in segments]}


def batch_from_item(item: Mapping[str, Any]) -> StatementBatch:
    """The batch of `batch_to_item`. Raises ImmutableWindow."""
    values = {key: value for key, value in item.items() if key != "kind"}
    return _batch(values)


def segment_from_item(item: Mapping[str, Any]) -> SegmentPlan:
    """A segment of `end`."""
    values = dict(item)
    for name in ("end_ts", "ddl_commit_ts"):
        values[name] = int(values[name])
    for name in ("expected", "expected_after"):
        values[name] = None if values[name] is None else Expected.from_json(values[name])
    ddl = values["ddl"]
    for name in ("touched", "copies"):
        values[name] = tuple((first, second) for first, second in values[name])
    return SegmentPlan(**{**values, "ddl": None if ddl is None else _batch(ddl)})


def _segment(plan: SegmentPlan) -> Item:
    return {
        "number": plan.number,
        "end_ts": str(plan.end_ts),
        "schema_version": plan.schema_version,
        "ddl": None if plan.ddl is None else _shown(plan.ddl),
        "ddl_commit_ts": str(plan.ddl_commit_ts),
        "touched": plan.touched,
        "expected_after": plan.expected_after and plan.expected_after.to_json(),
        "repeatable": plan.repeatable,
        "expected": plan.expected and plan.expected.to_json(),
        "rows": plan.rows,
        # As it was known, not counted again: a segment goes in the same mode from here as from the lake.
        "bytes": plan.bytes,
        "ordered": plan.ordered,
        "rows_ahead": plan.rows_ahead,
        "copies": plan.copies,
    }


def _shown(batch: StatementBatch) -> Item:
    values = batch_to_row(batch)
    # `kind` is the record's own word.
    return {**{k: v for k, v in values.items() if k != "kind"}, "form": batch.kind, "whole_ts": str(batch.whole_ts)}


def _batch(item: Mapping[str, Any]) -> StatementBatch:
    values = {**item, "kind": item["form"], "whole_ts": int(item["whole_ts"])}
    del values["form"]
    return checked_batch_from_row(values)
