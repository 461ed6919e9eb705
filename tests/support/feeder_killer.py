"""A feeder that is killed at any step of its work: `-m support.feeder_killer SETTINGS`, for `support.killer`.

A step is `before` or `after` followed by the name of a call below; SETTINGS is a feeder.toml.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from support.killer import serve

from binlake.cluster.pumpclient import PumpClient
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.connection import SourceLog
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.registration import Registration
from binlake.pump_service.feeder.service import Feeder
from binlake.pump_service.feeder.settings import read_settings
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkWriter

CALLS: dict[str, tuple[type, str]] = {
    "prewrites": (PumpClient, "write_prewrites"),
    "outcome": (FeederJournal, "commit"),
    "commit": (PumpClient, "send_commit"),
    "stored": (SourcePublisher, "on_stored"),
    "follow": (Catalog, "follow"),
    "read": (SourceLog, "read"),
    "resend": (SourcePublisher, "resend_commits"),
    "register": (Registration, "begin"),
}
STEPS = [f"{when} {call}" for call in CALLS for when in ("before", "after")]
_CALLS = CALLS | {"chunks": (ChunkWriter, "record")}
_REQUEST = "binlake.pump_service.feeder.snapshot.chunkwriter._PREWRITE_BYTES"
"""Where the size of a request is defined; reduced here so that a load of few rows needs many requests."""


def main(settings: str) -> None:
    """Read lines from the input until it ends."""
    feeder_file = read_settings(Path(settings))

    def work(step: str, number: int) -> None:
        # The child must not write to stdout: `serve` writes its answer there as a whole line.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        when, call = step.split()
        owner, name = _CALLS[call]
        hooked = _kill_at_call(getattr(owner, name), when, number)
        with mock.patch.object(owner, name, hooked), mock.patch(_REQUEST, 20_000):
            Feeder(feeder_file).run()

    serve(work)


def _kill_at_call(function: Callable[..., Any], when: str, number: int) -> Callable[..., Any]:
    """Wrap `function` so that its `number`-th call kills this process, before or after the call."""
    calls = itertools.count(1)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        mine = next(calls) == number
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = function(*args, **kwargs)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


if __name__ == "__main__":
    main(*sys.argv[1:])
