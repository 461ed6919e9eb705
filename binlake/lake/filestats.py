"""Delta's statistics of a Parquet file, from those that Arrow's writer has left in it.

Rule: a minimum is never too high and a maximum never too low. Where that cannot be said in JSON, there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq

_LONGEST = 256
"""Characters of a text's bound, as in a log of some hundred files."""
_LAST = "\U0010ffff"
_MS = timedelta(milliseconds=1)


def describe_file(metadata: pq.FileMetaData) -> str:
    """The statistics as Delta's JSON: the number of rows, and of each plain column bounds and NULLs."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(len(metadata.schema)):
        name = metadata.schema.column(number).path
        groups = [metadata.row_group(at).column(number).statistics for at in range(metadata.num_row_groups)]
        if metadata.schema.column(number).max_repetition_level or any(one is None for one in groups):
            continue
        if all(one.has_null_count for one in groups):
            nulls[name] = sum(one.null_count for one in groups)
        bounds = _find_bounds([one for one in groups if one.num_values])
        if bounds is not None:
            least[name], most[name] = bounds
    stats = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def _find_bounds(groups: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """(the minimum, the maximum) for JSON, or None."""
    if not groups or not all(one.has_min_max for one in groups):
        return None
    values = list(_read_bounds(groups))
    low, high = min(low for low, _ in values), max(high for _, high in values)
    if isinstance(low, datetime) and isinstance(high, datetime):
        return _format_ms(low), _format_ms(high + _MS)
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, str):
        return low[:_LONGEST], high if len(high) <= _LONGEST else high[:_LONGEST] + _LAST
    if isinstance(low, bool) or not isinstance(low, int | float) or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def _read_bounds(groups: Sequence[pq.Statistics]) -> Iterator[tuple[Any, Any]]:
    for one in groups:
        yield one.min, one.max


def _format_ms(moment: datetime) -> str:
    """Delta's text of `moment`, whole milliseconds at or below it."""
    text = moment.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z") if moment.tzinfo else text.replace("T", " ")
