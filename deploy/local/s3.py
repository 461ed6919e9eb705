"""A private S3 object store for tests: moto's server with its objects in memory, on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx

from deploy.local.ports import HOST
from deploy.local.storeserver import StoreServer
from deploy.setup.moto import install


class S3(StoreServer):
    """One store; `url` is its endpoint. It accepts any credentials. `folder`: of its log, otherwise a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("s3", folder)

    def build_command(self) -> Sequence[str | Path]:
        return [install(), "-m", "moto.server", "-H", HOST, "-p", str(self.port)]

    def create_bucket(self, name: str) -> None:
        """Create the bucket; an existing one stays as it is."""
        httpx.put(f"{self.url}/{name}").raise_for_status()
