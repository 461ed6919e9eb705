"""A private object store for tests, as a process on loopback that answers HTTP and has its objects in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

from deploy.local.ports import HOST, free_port
from deploy.local.process import Child

_START_S = 60.0


class StoreServer:
    """One store; `url` is its address. `folder`: of its log, otherwise a temporary one; `name`: of the log and of that
    folder."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._own = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"binlake-{name}-"))
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._service = Child(name, self.build_command(), self.folder)

    def build_command(self) -> Sequence[str | Path]:
        """What serves at HOST and `port`."""
        raise NotImplementedError

    def accepts(self, answer: httpx.Response) -> bool:
        """Whether the answer to a request without a signature is that of a store that serves."""
        return answer.is_success

    def start(self) -> Self:
        """Start, and return when it answers. Raises ProcessError."""
        self._service.start().wait_until(self._answers, _START_S)
        return self

    def stop(self) -> None:
        """Stop it; all objects are lost."""
        self._service.stop()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return self.accepts(httpx.get(self.url))
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
