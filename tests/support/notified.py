"""Notifiers that write each message as a line of JSON to the file `BINLAKE_TEST_TOLD`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier


def by_call(context: Mapping[str, Any], *, channel: str, token: str = "") -> None:
    """A notifier that is a plain callable."""
    _append({"channel": channel, "token": token, **_record(context)})


class ByNotifier(BaseNotifier):
    """A notifier class in the form of the providers' ones."""

    def __init__(self, channel: str) -> None:
        super().__init__()
        self.channel = channel

    def notify(self, context: Mapping[str, Any]) -> None:
        """Record the message."""
        _append({"channel": self.channel, **_record(context)})


def read_messages() -> list[dict[str, Any]]:
    """The messages received so far."""
    path = Path(os.environ["BINLAKE_TEST_TOLD"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _record(context: Mapping[str, Any]) -> dict[str, Any]:
    return {"run_id": str(context.get("run_id", "")), "binlake": context.get("binlake", {})}


def _append(told: dict[str, Any]) -> None:
    with Path(os.environ["BINLAKE_TEST_TOLD"]).open("a") as out:
        out.write(json.dumps(told) + "\n")
