"""Work that may hang (a lost file system, a silent server) runs in a daemon thread, and its caller stops waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def begin(work: Callable[[], Result], name: str) -> Future[Result]:
    """Start `work`; its result or exception is in the future. The process may end while it still hangs."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
