"""A page's work never holds the server: it has a deadline, few threads and a short queue."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from binlake.config import Replication
from binlake_airflow.pages.overview import Overview
from binlake_airflow.pages.workers import BoundedWorkers, TooBusy


def test_work_gives_its_result_or_its_error() -> None:
    async def ask() -> tuple[int, str]:
        bounded = BoundedWorkers(1, 1, 30)
        found = await bounded.run(lambda: 7)
        with pytest.raises(ZeroDivisionError) as raised:
            await bounded.run(lambda: 1 // 0)
        return found, str(raised.value)

    assert asyncio.run(ask()) == (7, "integer division or modulo by zero")


def test_what_hangs_stops_its_own_subject_alone_and_what_waits_behind_it_is_never_done() -> None:
    release, done = threading.Event(), threading.Event()

    async def ask() -> tuple[int, int]:
        bounded = BoundedWorkers(1, 1, 0.05)
        with pytest.raises(TimeoutError):
            await bounded.run(release.wait, "hangs")
        for _ in range(3):
            # Each frees its place in the queue when it is given up.
            with pytest.raises(TimeoutError):
                await bounded.run(done.set, "hangs")
        assert bounded.inside["hangs"] == 1
        waits = asyncio.ensure_future(bounded.run(done.set, "hangs", 30))
        await asyncio.sleep(0)
        with pytest.raises(TooBusy):
            await bounded.run(lambda: 1, "hangs")
        other = await bounded.run(lambda: 2, "well", 30)
        # It has left the queue when its task has ended, not when it is told to.
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        release.set()
        while bounded.inside["hangs"]:
            await asyncio.sleep(0.01)
        return other, await bounded.run(lambda: 3, "hangs", 30)

    try:
        assert asyncio.run(ask()) == (2, 3)
        assert not done.is_set()
    finally:
        release.set()


def test_a_thread_that_cannot_start_costs_its_own_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = threading.Thread.start, threading.Event()

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> int:
        bounded = BoundedWorkers(1, 1, 30)
        monkeypatch.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            # Neither its place in the queue nor its worker's is lost.
            with pytest.raises(RuntimeError, match="can't start"):
                await bounded.run(done.set, "s", 60)
            assert bounded.inside["s"] == 0
        monkeypatch.setattr(threading.Thread, "start", real)
        return await bounded.run(lambda: 1, "s", 60)

    assert asyncio.run(ask()) == 1
    # What could not be begun is not done behind its caller's back.
    assert not done.is_set()


# A read of a pipe that nobody writes to hangs as a read of a lost file system does: in the system, beyond any signal.
_HUNG = """
import asyncio, os
from binlake_airflow.pages.workers import BoundedWorkers

async def ask():
    try:
        await BoundedWorkers(deadline_s=0.1).run(lambda: os.read(os.pipe()[0], 1), "hangs")
    except TimeoutError:
        print("given up")

asyncio.run(ask())
"""


def test_a_server_ends_at_once_though_a_lake_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", _HUNG], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


def test_a_lake_that_hangs_or_fails_hides_no_other_and_is_left_alone_for_a_while() -> None:
    release, asked = threading.Event(), Counter[str]()
    found = [Replication.model_validate({"name": name, "lake": {"path": "/l"}}) for name in ("bad", "hangs", "well")]

    def read(one: Replication) -> dict[str, Any]:
        asked[one.name] += 1
        if one.name == "hangs":
            release.wait()
        if one.name == "bad":
            raise json.JSONDecodeError("no", "{}}", 2)
        return {"name": one.name}

    async def ask() -> list[dict[str, Any]]:
        overview = Overview(BoundedWorkers(), lake_s=2)
        for _ in range(2):
            view = await overview.read_all(found, read)
        return list(view["replications"])

    try:
        shown = asyncio.run(ask())
    finally:
        release.set()
    assert [(one["name"], "problem" in one) for one in shown] == [("bad", True), ("hangs", True), ("well", False)]
    assert asked == {"bad": 2, "hangs": 1, "well": 2}
