"""The states a consumer of a capture must show: upstream's, with the binlog's rows where those are known to differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from binlake.compare.capture import Capture, Json, StateAt


def read_expected_states(capture: Capture) -> Iterator[StateAt]:
    """States by commit_ts. A table in `replayed.jsonl` gives its rows, all else is from `states.jsonl`.

    What the binlog did not say upstream (tidb-binlog 1.14, 1) no consumer can show: verify is there to find it.
    """
    rows = {
        (state.commit_ts, table["table"]): table["rows_by_binlog"]
        for state in capture.replayed()
        for table in state.contents
    }
    for state in capture.states():
        yield replace(state, contents=tuple(_with_rows(table, rows, state.commit_ts) for table in state.contents))


def _with_rows(table: Json, rows: dict[tuple[int, str], list[object]], commit_ts: int) -> Json:
    found = rows.get((commit_ts, table["table"]))
    return table if found is None else {**table, "rows": found}
