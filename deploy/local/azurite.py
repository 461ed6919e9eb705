"""A private Azure storage account for tests: Azurite with its blobs in memory, on loopback."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import pyarrow.fs as fs

from deploy.local.ports import HOST
from deploy.local.storeserver import StoreServer
from deploy.setup.azurite import install

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite always has, and its key, which is public."""


class Azurite(StoreServer):
    """One account; `url` is its endpoint. `folder`: of its log, otherwise a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__("azurite", folder)
        self.url = f"{self.url}/{ACCOUNT}"

    def build_command(self) -> Sequence[str | Path]:
        node, script = install()
        # Newer clients name versions of the interface that it does not know, and it serves them.
        words = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [node, script, *words, "--blobHost", HOST, "--blobPort", str(self.port)]

    def accepts(self, answer: httpx.Response) -> bool:
        # It refuses: nothing signed the request.
        return answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR

    def open_files(self) -> fs.FileSystem:
        """Arrow's file system of the account; paths begin with the container."""
        place = f"{HOST}:{self.port}"
        plain = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        return fs.AzureFileSystem(
            ACCOUNT, account_key=KEY, blob_storage_authority=place, dfs_storage_authority=place, **plain
        )

    def create_container(self, name: str) -> None:
        """Create the container; an existing one stays as it is."""
        self.open_files().create_dir(name)
