"""`binlake` ends with one line and no traceback when a disk, a path, the reader of its output or a person stops it."""

from __future__ import annotations

import argparse
import errno
import subprocess
import sys
from collections.abc import Callable

import pytest
from deltalake.exceptions import DeltaError

from binlake import cli


class _Raises:
    """A command that meets `error`."""

    help = ""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """None."""

    def run(self, _args: argparse.Namespace) -> int:
        """Meet it."""
        raise self._error


Meets = Callable[[BaseException], int]


@pytest.fixture
def meets(monkeypatch: pytest.MonkeyPatch) -> Meets:
    def run(error: BaseException) -> int:
        monkeypatch.setattr(cli, "prepare", lambda _arguments: (_Raises(error), argparse.Namespace()))
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
def test_a_disk_that_refuses_is_one_line_with_a_hint(
    meets: Meets, capsys: pytest.CaptureFixture[str], error: Exception, words: tuple[str, ...]
) -> None:
    assert meets(error) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert all(word in told.err for word in (*words, "Hint: ", "room"))


def test_a_fault_of_the_program_keeps_its_traceback(meets: Meets) -> None:
    with pytest.raises(ZeroDivisionError):
        meets(ZeroDivisionError())


def test_an_interrupt_while_the_command_is_loaded_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "prepare", interrupted)
    assert cli.run(["any"]) == 130


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    command = [sys.executable, "-m", "binlake.cli", "config", "reference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        # Before the first byte: the interpreter alone takes longer to start.
        child.stdout.close()
        complaints = child.stderr.read()
    assert (child.returncode, complaints) == (141, "")
