"""Somebody who is told: notifiers that write what they hear as lines of JSON to the file `BINLAKE_TEST_TOLD`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


def by_call(context: Mapping[str, Any], *, channel: str, token: str = "") -> None:
    """A plain callable."""
    _write({"channel": channel, "token": token, **_heard(context)})


class ByNotifier(BaseNotifier):
    """A notifier class, as those of the providers."""

    def __init__(self, channel: str) -> None:
        super().__init__()
        self.channel = channel

    def notify(self, context: Mapping[str, Any]) -> None:
        """Keep it."""
        _write({"channel": self.channel, **_heard(context)})


def heard() -> list[dict[str, Any]]:
    """What was told so far."""
    path = Path(os.environ["BINLAKE_TEST_TOLD"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _heard(context: Mapping[str, Any]) -> dict[str, Any]:
    return {"run_id": str(context.get("run_id", "")), "binlake": context.get("binlake", {})}


def _write(told: dict[str, Any]) -> None:
    with Path(os.environ["BINLAKE_TEST_TOLD"]).open("a") as out:
        out.write(json.dumps(told) + "\n")
