"""A window's records as JSON: its manifest, its batches, its segments (commit_ts as decimal strings)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.statements.batch import StatementBatch, convert_batch_to_row, restore_checked_batch
from binlake.target.definitions.definitions import ExpectedState
from binlake.target.segments import SegmentPlan
from binlake.window.manifest import ApplyManifest

FORMAT = 1

Item = dict[str, Any]


def encode_head(manifest: ApplyManifest, part: int) -> Item:
    """The first record of every file: its window, and the number of this file within the window (from 1)."""
    return {"kind": "window", "format": FORMAT, "part": part, "manifest": manifest.to_json()}


def encode_batch(batch: StatementBatch) -> Item:
    """The record of a batch."""
    return {"kind": "batch", **_encode_batch_values(batch)}


def encode_end(parts: int, batches: int, segments: list[SegmentPlan]) -> Item:
    """The last record of a window's last file; it shows that the window is complete."""
    return {"kind": "end", "parts": parts, "batches": batches, "segments": [_encode_segment(p) for p in segments]}


def decode_batch(item: Mapping[str, Any]) -> StatementBatch:
    """Parse what `encode_batch` wrote. Raises ImmutableWindow."""
    values = {key: value for key, value in item.items() if key != "kind"}
    return _decode_batch_values(values)


def decode_segment(item: Mapping[str, Any]) -> SegmentPlan:
    """Parse one of the segments that `encode_end` wrote."""
    values = dict(item)
    for name in ("end_ts", "ddl_commit_ts"):
        values[name] = int(values[name])
    for name in ("expected", "expected_after"):
        values[name] = None if values[name] is None else ExpectedState.from_json(values[name])
    ddl = values["ddl"]
    for name in ("touched", "copies"):
        values[name] = tuple((first, second) for first, second in values[name])
    return SegmentPlan(**{**values, "ddl": None if ddl is None else _decode_batch_values(ddl)})


def _encode_segment(plan: SegmentPlan) -> Item:
    return {
        "number": plan.number,
        "end_ts": str(plan.end_ts),
        "schema_version": plan.schema_version,
        "ddl": None if plan.ddl is None else _encode_batch_values(plan.ddl),
        "ddl_commit_ts": str(plan.ddl_commit_ts),
        "touched": plan.touched,
        "expected_after": plan.expected_after and plan.expected_after.to_json(),
        "repeatable": plan.repeatable,
        "expected": plan.expected and plan.expected.to_json(),
        "rows": plan.rows,
        # The planned value, not counted again, so that relay files give the same mode as the lake.
        "bytes": plan.bytes,
        "ordered": plan.ordered,
        "rows_ahead": plan.rows_ahead,
        "copies": plan.copies,
    }


def _encode_batch_values(batch: StatementBatch) -> Item:
    values = convert_batch_to_row(batch)
    # `kind` is the record's own kind, so the batch's kind is stored as `form`.
    return {**{k: v for k, v in values.items() if k != "kind"}, "form": batch.kind, "whole_ts": str(batch.whole_ts)}


def _decode_batch_values(item: Mapping[str, Any]) -> StatementBatch:
    values = {**item, "kind": item["form"], "whole_ts": int(item["whole_ts"])}
    del values["form"]
    return restore_checked_batch(values)
