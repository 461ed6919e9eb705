"""A private Azure storage account for tests: Azurite with its blobs in memory, on loopback."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import httpx
import pyarrow.fs as fs

from deploy.local.ports import HOST, free_port
from deploy.local.process import Child
from deploy.setup.azurite import install

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite always has, and its key, which is public."""
_START_S = 60.0


class Azurite:
    """One account; `url` is its endpoint. `folder`: of its log, otherwise a temporary one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._own = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="binlake-azurite-"))
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/{ACCOUNT}"
        node, script = install()
        # Newer clients name versions of the interface that it does not know, and it serves them.
        words = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        command: list[str | Path] = [node, script, *words, "--blobHost", HOST, "--blobPort", str(self.port)]
        self._service = Child("azurite", command, self.folder)

    def start(self) -> Azurite:
        """Start, and return when it answers. Raises ProcessError."""
        self._service.start().wait_until(self._answers, _START_S)
        return self

    def stop(self) -> None:
        """Stop it; all blobs are lost."""
        self._service.stop()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

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

    def _answers(self) -> bool:
        try:
            # It refuses: nothing signed this.
            return httpx.get(self.url).status_code < httpx.codes.INTERNAL_SERVER_ERROR
        except httpx.TransportError:
            return False

    def __enter__(self) -> Azurite:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
