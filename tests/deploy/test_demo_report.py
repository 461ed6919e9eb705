"""What the demos print about a window is measured, not assumed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from binlake import tso
from deploy.local.demo_mysql import MysqlDemo
from deploy.local.demo_report import Report


def test_demo_says_what_it_waits_for_only_while_nothing_else_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    report, printed = Report(), ""
    until = time.monotonic() + 30
    with report.wait_for("Airflow", every_s=0.02):
        while printed.count("still waiting for Airflow") < 3:
            assert time.monotonic() < until
            printed += capsys.readouterr().out
    capsys.readouterr()
    with report.wait_for("Spark", every_s=60.0):
        report.say("MariaDB is up")
    assert [line.split("s  ")[1] for line in capsys.readouterr().out.splitlines()] == ["MariaDB is up"]


def test_mysql_demo_prints_the_age_of_the_window_when_it_was_applied(capsys: pytest.CaptureFixture[str]) -> None:
    hi = tso.compose(1_795_000_000_000)
    events: list[dict[str, Any]] = [
        {"stage": "finalize", "state": "done", "lo": hi - 9, "hi": hi, "rows": 3, "seconds": 0.5, "run_id": "r",
         "at_ms": 1_795_000_002_500},
    ]  # fmt: skip

    class Log:
        def read_events(self) -> list[dict[str, Any]]:
            return events

    demo = MysqlDemo.__new__(MysqlDemo)
    demo.report, demo._windows = Report(), set()
    demo.__dict__["_log"] = Log()
    demo.report_windows()
    assert "lag 2.5 s" in capsys.readouterr().out
