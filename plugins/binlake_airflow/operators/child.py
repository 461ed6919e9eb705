"""Runs one `binlake` command in its own process and writes its outcome for the task.

`python -m binlake_airflow.operators.child RESULT COMMAND ARGUMENTS…`; needs no Airflow. The command's output is
returned, not logged, because it may contain the rows of a table. Log lines go to stderr, and so to the task's log.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from binlake.cli import prepare
from binlake.common.logs import write_events_to
from binlake.errors import BinlakeError

MODULE = "binlake_airflow.operators.child"


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """`{"ok": true, "status": …, "printed": …}` or `{"ok": false, "error": {kind, class, message, hint, where}}`."""
    command, args = prepare(arguments)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            status = command.run(args)
    except BinlakeError as error:
        return {"ok": False, "error": _describe_error(error)}
    return {"ok": True, "status": status, "printed": printed.getvalue()}


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 if the command gave an answer, 1 if it failed."""
    write_events_to(sys.stderr)
    result, *words = arguments
    outcome = run(words)
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")
    if not outcome["ok"]:
        print(f"error: {outcome['error']['message']}", file=sys.stderr)
    return 0 if outcome["ok"] else 1


def _describe_error(error: BinlakeError) -> dict[str, Any]:
    fields = {"message": error.message, "hint": error.hint, "where": error.where}
    return {"kind": error.kind, "class": type(error).__name__, **fields}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
