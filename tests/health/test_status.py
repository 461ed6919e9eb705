"""`binlake status` says of each replication what the page says, the worst first, without Airflow."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from health.conftest import Fleet

from binlake.cli import run
from binlake.common import commandline
from binlake.common.terminal import format_duration
from binlake.health import command, survey
from binlake.health.survey import choose_status
from binlake.lake.windowlog import WindowLog

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "status.md"


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    status = run(["status", *arguments])
    return status, capsys.readouterr().out


def normalize(text: str) -> list[str]:
    """Without what differs between two runs: times, folders and the widths of columns."""
    lines = [re.sub(r"(\d\d-\d\d )?\d\d:\d\d:\d\d", "TIME", line.strip()) for line in text.splitlines()]
    lines = [re.sub(r"http\S+", "URL", re.sub(r"/\S*/", "", line)) for line in lines]
    lines = [re.sub(r"\b\d+ (s|min|h|d)\b", "DURATION", re.sub(r"\s{2,}", "  ", line)) for line in lines]
    return [line for line in lines if line and "─" not in line]


def test_worst_is_first_and_the_example_of_the_docs_is_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = show(capsys)
    assert status == 5
    example = re.search(r"\$ binlake status\n(.*?)```", _PAGE.read_text(), re.S)
    assert example is not None
    assert normalize(out) == normalize(example[1])


def test_json_has_timestamps_as_text_and_says_what_is_unknown(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = show(capsys, "crm", "--output", "json")
    (row,) = json.loads(out)
    assert (status, row["name"], row["state"], row["problems"]) == (0, "crm", "running", [])
    assert (isinstance(row["landed"]["commit_ts"], str), row["orchestration"]) == (True, "unknown")
    assert row["file"] == str(fleet.folder / "crm.toml")


def test_named_replication_shows_every_problem_with_its_command(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = show(capsys, str(fleet.folder / "shop.toml"))
    assert status == 5
    assert "shop: blocked for " in out
    assert f"    binlake pumps --pd-urls {fleet.pd_url}\n" in out
    assert "shop: behind: more than 600 s behind the source: the lake" in out
    assert "more: binlake status" not in out


def test_source_that_is_not_heard_makes_every_lag_unknown(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.feeder.source |= {"heard": False, "trouble": "refused"}
    try:
        status, out = show(capsys, "crm")
    finally:
        fleet.feeder.source |= {"heard": True, "trouble": ""}
    assert (status, "unknown: the source is not heard" in out) == (5, True)
    assert re.search(r"crm: unreachable for \d s: the source shard-1 makes no progress: refused\n", out)


@pytest.mark.long
def test_file_that_is_not_valid_and_lake_that_hangs_are_unknown_and_hide_no_other(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    read = survey.read_health

    def hang(replication: Any, log: WindowLog, known: Any) -> Any:
        if replication.name == "shop":
            release.wait(30)
        return read(replication, log, known)

    monkeypatch.setattr(survey, "read_health", hang)
    broken = fleet.folder / "bad.toml"
    broken.write_text("name = 1\n")
    try:
        status, out = show(capsys, "--output", "json", "--timeout", "2")
    finally:
        release.set()
        broken.unlink()
    rows = {row["name"]: row for row in json.loads(out)}
    assert (status, [rows[name]["state"] for name in ("bad", "shop", "crm")]) == (6, ["unknown", "unknown", "running"])
    assert rows["shop"]["problems"][0]["text"] == "its lake did not answer within 2 s"
    assert rows["bad"]["problems"][0]["remedy"] == f"binlake doctor {broken}"


def test_unknown_name_is_an_error_that_lists_the_names_and_an_empty_folder_is_not_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["status", "nothing"]) == 1
    assert "known are: crm, orders, shop" in capsys.readouterr().err
    monkeypatch.setenv("BINLAKE_REPLICATIONS", str(tmp_path))
    assert show(capsys) == (3, "")


def test_watch_repeats_until_it_is_interrupted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", type("Clock", (), {"sleep": staticmethod(sleep)}))
    status, out = show(capsys, "crm", "--watch", "3", "--output", "json")
    assert (status, slept, out.count('[{"name": "crm"')) == (130, [3.0, 3.0], 2)


@pytest.mark.parametrize(
    ("states", "status"),
    [(["running", "empty"], 0), (["running", "behind"], 4), (["attention"], 4), (["behind", "paused"], 5),
     (["standing"], 5), (["failing", "unknown"], 6)],
)  # fmt: skip
def test_exit_status_is_that_of_the_worst(states: list[str], status: int) -> None:
    assert choose_status([{"state": state} for state in states]) == status


def test_durations_are_in_the_unit_that_a_person_would_use() -> None:
    told = [format_duration(seconds) for seconds in (-1, 0.4, 119, 120, 7199, 7200, 93_600, 259_200)]
    assert told == ["0 s", "0 s", "119 s", "2 min", "120 min", "2 h", "26 h", "3 d"]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_must_be_a_number_above_zero(text: str) -> None:
    with pytest.raises(commandline.argparse.ArgumentTypeError):
        commandline.parse_seconds(text)


def test_airflow_that_cannot_be_read_is_said_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_replication: Any) -> Any:
        raise ValueError("no such table: dag")

    monkeypatch.setattr(command, "find_airflow", lambda: refuse)
    status, out = show(capsys, "crm", "--airflow")
    assert (status, "Airflow's database cannot be read: ValueError" in out, "was not asked" in out) == (6, True, False)
