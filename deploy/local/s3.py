"""A private S3 object store for tests: moto's server with its objects in memory, on loopback."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx

from deploy.local.ports import HOST, free_port
from deploy.local.process import Child
from deploy.setup.moto import install

_START_S = 60.0


class S3:
    """One store; `url` is its endpoint. It accepts any credentials. `folder`: of its log, otherwise a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._own = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="binlake-s3-"))
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        command: list[str | Path] = [install(), "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        self._service = Child("s3", command, self.folder)

    def start(self) -> S3:
        """Start, and return when it answers. Raises ProcessError."""
        self._service.start().wait_until(self._answers, _START_S)
        return self

    def stop(self) -> None:
        """Stop it; all objects are lost."""
        self._service.stop()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def create_bucket(self, name: str) -> None:
        """Create the bucket; an existing one stays as it is."""
        httpx.put(f"{self.url}/{name}").raise_for_status()

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url).is_success
        except httpx.TransportError:
            return False

    def __enter__(self) -> S3:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
