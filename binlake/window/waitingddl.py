"""The DDL before which a sink's window ends because the target cannot express it, in the detail of compact's result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.base.sql import Dialect
from binlake.ddl.definitions import LandedDdl
from binlake.window.cuts import find_refusal

KEY = "waits_for_ddl"
_SHOWN = 200


def build_detail(ddl: LandedDdl, dialect: Dialect) -> dict[str, Any]:
    """`{KEY: {commit_ts, query, text, ways}}` for a DDL that `dialect` refuses; empty if it does not."""
    refusal = find_refusal(ddl, dialect)
    if refusal is None:
        return {}
    found = {"commit_ts": str(ddl.commit_ts), "query": ddl.query[:_SHOWN]}
    return {KEY: {**found, "text": refusal.message, "ways": refusal.hint}}


def describe(detail: Mapping[str, Any]) -> str:
    """What a result says about the DDL that waits, in words for people; empty = none waits."""
    found = detail.get(KEY)
    if not found:
        return ""
    return (
        f"the window ends before the DDL at commit_ts {found['commit_ts']}, which waits, and all later changes with it:"
        f" {found['text']} ({found['query']}). Hint: {found['ways']}"
    )
