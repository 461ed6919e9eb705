"""hi must not fall into a DDL that rows ran ahead of: it moves before the first such row, or after the binlog."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from binlake.errors import IncompleteWindow
from binlake.rows.schema import Action, DdlJob, WindowDdl
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land.ddljobs import _lower_before_missing_job, _lower_before_rows_ahead


@dataclass
class Rows:
    """Stands for a pull: (commit_ts, schema version) of row changes."""

    found: tuple[tuple[int, int], ...]

    def find_first_row(self, since: int, version: int = 0) -> int | None:
        return min((ts for ts, own in self.found if ts >= since and own >= version), default=None)


def dropped(version: int = 8, *, began: int, end: int, action: Action = Action.DROP_INDEX) -> WindowDdl:
    job = DdlJob.from_dict(
        {"id": 70 + version, "type": int(action), "state": 6, "schema_id": 2, "table_id": 10, "start_ts": began - 5,
         "real_start_ts": began, "binlog": {"SchemaVersion": version, "FinishedTS": end}}
    )  # fmt: skip
    return WindowDdl.without_binlog(job, end)


@pytest.mark.parametrize(
    ("hi", "lowered"),
    [(59, 59), (60, 60), (65, 65), (70, 69), (99, 69), (100, 100), (140, 140)],
)
def test_hi_is_lowered_before_the_first_row_ahead_of_a_ddl_above_it(hi: int, lowered: int) -> None:
    rows = Rows(((30, 5), (70, 6), (80, 5), (110, 8)))
    assert _lower_before_rows_ahead(rows, Bounds(20, hi), [dropped(began=60, end=100)]) == lowered  # type: ignore[arg-type]


def test_hi_stays_without_rows_in_the_gap() -> None:
    assert _lower_before_rows_ahead(Rows(((30, 5), (110, 8))), Bounds(20, 90), [dropped(began=60, end=100)]) == 90  # type: ignore[arg-type]


def test_lowered_hi_may_fall_into_another_ddl() -> None:
    rows = Rows(((30, 5), (55, 6), (85, 7)))
    jobs = [dropped(7, began=50, end=88), dropped(9, began=80, end=100)]
    # hi = 95 is inside the second DDL, so it moves before row 85; that is inside the first DDL, so it moves before 55
    assert _lower_before_rows_ahead(rows, Bounds(20, 95), jobs) == 54  # type: ignore[arg-type]


def test_window_that_would_start_with_such_a_row_waits_with_a_hint() -> None:
    with pytest.raises(IncompleteWindow, match=r"job_id=78.*stop-at.*window\.max-seconds"):
        _lower_before_rows_ahead(Rows(((70, 6),)), Bounds(69, 90), [dropped(began=60, end=100)])  # type: ignore[arg-type]


def test_ddl_visible_only_at_its_binlog_does_not_lower_hi() -> None:
    jobs = [dropped(began=60, end=100, action=Action.ADD_INDEX)]
    assert _lower_before_rows_ahead(Rows(((70, 6),)), Bounds(20, 90), jobs) == 90  # type: ignore[arg-type]


def test_without_the_jobs_history_every_row_of_a_later_version_counts_as_ahead() -> None:
    rows = Rows(((30, 5), (70, 6), (110, 8)))
    ddls = [WindowDdl(100, 99, 78, 5, "ALTER TABLE t")]
    assert _lower_before_missing_job(rows, Bounds(20, 120), ddls, 5) == 69  # type: ignore[arg-type]
    assert _lower_before_missing_job(rows, Bounds(20, 120), ddls, 6) == 99  # type: ignore[arg-type]
    with pytest.raises(IncompleteWindow, match="job 78 is not in the source's history yet"):
        _lower_before_missing_job(rows, Bounds(69, 120), ddls, 5)  # type: ignore[arg-type]
