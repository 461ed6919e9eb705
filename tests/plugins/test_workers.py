"""A page's work never blocks the server: it has a deadline, few threads and a short queue."""

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
from binlake_airflow.pages.workers import BoundedWorkers, Overview, TooBusy


def test_work_returns_its_result_or_raises_its_error() -> None:
    async def ask() -> tuple[int, str]:
        bounded = BoundedWorkers(1, 1, 30)
        found = await bounded.run(lambda: 7)
        with pytest.raises(ZeroDivisionError) as raised:
            await bounded.run(lambda: 1 // 0)
        return found, str(raised.value)

    assert asyncio.run(ask()) == (7, "integer division or modulo by zero")


def test_hanging_work_blocks_only_its_subject_and_abandoned_work_is_not_done() -> None:
    release, done = threading.Event(), threading.Event()

    async def ask() -> tuple[int, int]:
        bounded = BoundedWorkers(1, 1, 0.05)
        with pytest.raises(TimeoutError):
            await bounded.run(release.wait, "hangs")
        for _ in range(3):
            # Abandoned work frees its place in the queue.
            with pytest.raises(TimeoutError):
                await bounded.run(done.set, "hangs")
        assert bounded.inside["hangs"] == 1
        waits = asyncio.ensure_future(bounded.run(done.set, "hangs", 30))
        await asyncio.sleep(0)
        with pytest.raises(TooBusy):
            await bounded.run(lambda: 1, "hangs")
        other = await bounded.run(lambda: 2, "well", 30)
        # Cancelled work leaves the queue when its task has ended, not at the cancellation.
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


def test_thread_that_cannot_start_fails_only_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = threading.Thread.start, threading.Event()

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask() -> int:
        bounded = BoundedWorkers(1, 1, 30)
        monkeypatch.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            # Neither its place in the queue nor its worker is lost.
            with pytest.raises(RuntimeError, match="can't start"):
                await bounded.run(done.set, "s", 60)
            assert bounded.inside["s"] == 0
        monkeypatch.setattr(threading.Thread, "start", real)
        return await bounded.run(lambda: 1, "s", 60)

    assert asyncio.run(ask()) == 1
    # Work that could not be started is not done later.
    assert not done.is_set()


# Reading a pipe without a writer hangs like reading a lost file system: in a system call that no signal ends.
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


def test_server_ends_at_once_although_a_lake_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", _HUNG], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")


def test_hanging_or_failing_lake_hides_no_other_and_is_skipped_for_a_while() -> None:
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
