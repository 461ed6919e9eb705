"""A private schema registry for tests and the demo: Apicurio with its schemas in memory, on loopback."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx

from binlake.common.installation import SHORT_LIVED
from deploy.local.ports import HOST, free_port
from deploy.local.process import Child
from deploy.setup.apicurio import install

_START_S = 180.0


class Apicurio:
    """One registry; `url` is its Confluent-compatible API."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="binlake-apicurio-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/apis/ccompat/v7"
        options = ("-Xmx400m", *SHORT_LIVED.split())
        listen = (f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={self.port}")
        self._service = Child("apicurio", ["java", *options, *listen, "-jar", install()], self.folder)

    def start(self) -> Apicurio:
        """Start, and return when it answers. Raises ProcessError."""
        self._service.start().wait_until(self._answers, _START_S)
        return self

    def stop(self) -> None:
        """End it; it forgets all schemas."""
        self._service.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def set_compatibility(self, policy: str) -> None:
        """Set the policy of all subjects, such as BACKWARD or NONE."""
        httpx.put(f"{self.url}/config", json={"compatibility": policy}).raise_for_status()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/subjects").is_success
        except httpx.TransportError:
            return False

    def __enter__(self) -> Apicurio:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
