"""On a terminal the steps of a load replace each other in one line, and the last one stays; else each is a line."""

from __future__ import annotations

import pytest
import structlog

from binlake.common.terminal import tell_nobody
from binlake.spark_jobs.commands.bootstrap import Bootstrap, SourceLoad, build_show

STEPS = [
    Bootstrap(phase, (SourceLoad("tidb", state, rows, 50, 2, done, 1, 9),))
    for phase, state, rows, done in (
        ("loading", "reading", 10, 0),
        ("loading", "reading", 30, 1),
        ("landed", "done", 50, 2),
    )
]


def test_terminal_has_one_line_and_the_end_stays(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    show = build_show(told.append, "text")
    for step in STEPS:
        show(step)
    assert told == [step.text for step in STEPS]
    assert capsys.readouterr().out == f"{STEPS[-1].text}\n"


def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show = build_show(tell_nobody, "text")
    for step in STEPS:
        show(step)
    assert capsys.readouterr().out == "".join(f"{step.text}\n" for step in STEPS)


def test_with_json_steps_are_events(capsys: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as logs:
        for step in STEPS:
            build_show(tell_nobody, "json")(step)
    assert [line["phase"] for line in logs] == ["loading", "loading", "landed"]
    assert capsys.readouterr().out == ""
