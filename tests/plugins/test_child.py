"""A command in a task's child process: its output is kept, its errors keep their class, its log is shown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.replication_files import write_replication

from binlake import errors
from binlake_airflow.jobs import build_error
from binlake_airflow.operators import child


def test_answer_goes_to_the_file_and_not_to_the_log(folder: Path, tmp_path: Path) -> None:
    path, result = write_replication(folder, "orders", target=None), tmp_path / "result.json"
    words = [str(result), "config", "check", str(path)]
    done = subprocess.run([sys.executable, "-m", child.MODULE, *words], capture_output=True, text=True, check=True)
    outcome = json.loads(result.read_text())
    assert (outcome["ok"], outcome["status"], json.loads(outcome["printed"])["name"]) == (True, 0, "orders")
    assert done.stdout == ""


def test_error_keeps_its_class_and_text(folder: Path) -> None:
    path = write_replication(folder, "orders", target=None)
    outcome = child.run(["audit", "transaction", "470548480001835008", "--replication", str(path), "--output", "json"])
    assert outcome["ok"] is False
    told = outcome["error"]
    error = build_error(told)
    assert type(error) is getattr(errors, told["class"])
    assert isinstance(error, errors.Permanent)
    assert error.hint


def test_unknown_command_is_refused() -> None:
    with pytest.raises(SystemExit):
        child.run(["no-such-command"])
