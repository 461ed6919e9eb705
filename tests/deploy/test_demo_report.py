"""What the demos print about a window is measured, not assumed."""

from __future__ import annotations

from typing import Any

import pytest

from binlake import tso
from deploy.local.demo_mysql import Demo
from deploy.local.demo_report import Report


def test_mysql_demo_prints_the_age_of_the_window_when_it_was_applied(capsys: pytest.CaptureFixture[str]) -> None:
    hi = tso.compose(1_795_000_000_000)
    events: list[dict[str, Any]] = [
        {"stage": "finalize", "state": "done", "lo": hi - 9, "hi": hi, "rows": 3, "seconds": 0.5, "run_id": "r",
         "at_ms": 1_795_000_002_500},
    ]  # fmt: skip

    class Log:
        def read_events(self) -> list[dict[str, Any]]:
            return events

    demo = Demo.__new__(Demo)
    demo.report, demo._windows = Report(), set()
    demo.__dict__["_log"] = Log()
    demo.report_windows()
    assert "lag 2.5 s" in capsys.readouterr().out
