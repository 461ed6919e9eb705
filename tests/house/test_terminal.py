"""Commands print values unchanged, complete, and never interpreted as markup."""

from __future__ import annotations

import argparse
import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from binlake.common.terminal import escape_invisible, format_value, print_table
from binlake.spark_jobs.commands import audit

TS = "470548480035651584"
STRANGE = ["[red]x", "x[/]y", "[link=file:///etc]z[/link]", ":smile:", "\\[b]", "a" * 300, "中文" * 60]


class Terminal(io.StringIO):
    """A terminal with a fixed number of columns."""

    def isatty(self) -> bool:
        return True


def print_rows(monkeypatch: pytest.MonkeyPatch, rows: list[list[str]], *, width: int = 0) -> str:
    out = Terminal() if width else io.StringIO()
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    print_table(("commit_ts", "[b]name"), rows, whole=("commit_ts",))
    return out.getvalue()


def test_pipe_output_is_never_cut_or_interpreted_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    out = print_rows(monkeypatch, [[TS, text] for text in STRANGE])
    assert all(text in out for text in [*STRANGE, "[b]name"])
    assert (out.count(TS), "…" in out, "\x1b" in out) == (len(STRANGE), False, False)
    assert len([line for line in out.splitlines() if TS in line]) == len(STRANGE)


def test_narrow_terminal_wraps_values_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    out = print_rows(monkeypatch, [[TS, text] for text in STRANGE], width=60)
    joined = "".join(line.strip() for line in out.replace(TS, "").splitlines())
    assert all(text in joined for text in STRANGE)
    assert (out.count(TS), "…" in out) == (len(STRANGE), False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "NULL"), ("NULL", '"NULL"'), ("null", "null"), ("", '""'), (" a", '" a"'), ('"', '"\\""'), ("a b", "a b"),
     ("a\nb", '"a\\nb"'), ("\x1b[31m", '"\\u001b[31m"'), ("\u202e", '"\\u202e"'), ("\x9b", '"\\u009b"')],
)  # fmt: skip
def test_value_is_distinguished_from_null_and_invisible_characters(value: str | None, shown: str) -> None:
    assert format_value(value) == shown
    assert escape_invisible(shown) == shown


def test_audit_in_a_pipe_shows_every_value_completely(capsys: pytest.CaptureFixture[str]) -> None:
    base: Any = SimpleNamespace(delta_version=3, hi=7)
    rows = [{"v": text, "w": None} for text in (*STRANGE, "NULL")]
    found: Any = SimpleNamespace(ts=int(TS), columns=["v", "w"], rows=rows, base=base, inexact="")
    audit._print_table(found, argparse.Namespace(table="d.[t]", limit=50))
    out = capsys.readouterr().out
    assert all(text in out for text in [*STRANGE, "d.[t] as of", '"NULL"', " NULL "])
    image = {"v": "x[/]y" * 60, "w": None, "n": "NULL"}
    change = {"commit_ts": TS, "commit_time": "t", "start_ts": TS, "db": "d", "table": "t", "op": "update",
              "before": None, "after": image}  # fmt: skip
    audit._print_changes([change], "seq", ["0"])
    out = capsys.readouterr().out
    assert '{"v": "' + "x[/]y" * 60 + '", "w": null, "n": "NULL"}' in out
    assert out.count(TS) == 2
