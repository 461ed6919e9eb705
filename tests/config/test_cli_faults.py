"""`binlake` prints one line and no traceback if a disk, a path, a closed pipe or Ctrl-C stops it."""

from __future__ import annotations

import argparse
import errno
import subprocess
import sys
from collections.abc import Callable

import pytest
from deltalake.exceptions import DeltaError

from binlake import cli
from binlake.errors import TargetRefused


class _FailingCommand:
    """A command that raises `error`."""

    help = ""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The command has no arguments."""

    def run(self, _args: argparse.Namespace) -> int:
        """Raise the error."""
        raise self._error


RunFailing = Callable[[BaseException], int]


@pytest.fixture
def meets(monkeypatch: pytest.MonkeyPatch) -> RunFailing:
    def run(error: BaseException) -> int:
        monkeypatch.setattr(cli, "prepare", lambda _arguments: (_FailingCommand(error), argparse.Namespace()))
        return cli.run(["any"])

    return run


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/lake/x"), ("No space left on device", "/lake/x")),
        (PermissionError(errno.EACCES, "Permission denied", "/lake/x"), ("Permission denied", "/lake/x")),
        (OSError("closed"), ("closed",)),
        (DeltaError("Generic LocalFileSystem error:\nNo space left on device (os error 28)"), ("error 28", "lake")),
    ],
)
def test_storage_error_is_printed_as_one_line_with_hint(
    meets: RunFailing, capsys: pytest.CaptureFixture[str], error: Exception, words: tuple[str, ...]
) -> None:
    assert meets(error) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in (*words, "Hint: ", "space"))


def test_text_of_a_server_changes_no_colour_and_moves_no_cursor(
    meets: RunFailing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert meets(TargetRefused("Unknown column '\x1b[31mred\x1b[2J'\r\nover", where={"table": "shop.\x07"})) == 1
    printed = capsys.readouterr().err
    assert printed == "error: Unknown column '\\u001b[31mred\\u001b[2J'\\u000d over [table=shop.\\u0007]\n"


def test_program_fault_keeps_its_traceback(meets: RunFailing) -> None:
    with pytest.raises(ZeroDivisionError):
        meets(ZeroDivisionError())


def test_interrupt_while_command_loads_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "prepare", raise_interrupt)
    assert cli.run(["any"]) == 130


def test_closed_pipe_ends_command_without_complaints() -> None:
    command = [sys.executable, "-m", "binlake.cli", "config", "reference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        # This happens before the first byte of output: the interpreter alone takes longer to start.
        child.stdout.close()
        complaints = child.stderr.read()
    assert (child.returncode, complaints) == (141, "")
