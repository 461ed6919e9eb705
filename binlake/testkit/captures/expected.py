"""The states that a consumer of a capture must show: the source's, with the binlog's rows where these differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from binlake.testkit.captures.capture import Capture, Json, StateAt


def read_expected_states(capture: Capture) -> Iterator[StateAt]:
    """States by commit_ts. Rows come from `replayed.jsonl` if it has the table; everything else from `states.jsonl`.

    No consumer can show changes that TiDB did not write to the binlog (tidb-binlog 1.14, 1); verify finds them.
    """
    rows = {
        (state.commit_ts, table["table"]): table["rows_by_binlog"]
        for state in capture.read_replayed_states()
        for table in state.contents
    }
    for state in capture.read_states():
        yield replace(state, contents=tuple(_with_rows(table, rows, state.commit_ts) for table in state.contents))


def _with_rows(table: Json, rows: dict[tuple[int, str], list[object]], commit_ts: int) -> Json:
    replayed = rows.get((commit_ts, table["table"]))
    return table if replayed is None else {**table, "rows": replayed}
