"""A private etcd for tests, because the embedded placement driver must behave like etcd."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from binlake.rpc import Tls
from deploy.local.ports import HOST, free_ports, is_open
from deploy.local.process import Child
from deploy.setup.debian import find_library_path
from deploy.setup.etcd import ROOT, install

_START_S = 120.0


class Etcd:
    """A server with one member; its data is deleted when it stops. With `tls`, clients must present a certificate."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._scheme = "http" if tls is None else "https"
        self.folder = Path(tempfile.mkdtemp(prefix="binlake-etcd-"))
        self.port, self._peer_port = free_ports(2)
        client, peer = self.url, f"http://{HOST}:{self._peer_port}"
        command: list[str | Path] = [
            install(),
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # Tests write little data and discard it.
            "--unsafe-no-fsync",
        ]
        if tls is not None:
            command += [f"--cert-file={tls.cert}", f"--key-file={tls.key}", f"--trusted-ca-file={tls.ca}"]
            command += ["--client-cert-auth"]
        found = find_library_path(ROOT)
        self._service = Child("etcd", command, self.folder, env={"LD_LIBRARY_PATH": found} if found else None)

    @property
    def url(self) -> str:
        """`http://host:port` for clients, https:// with TLS."""
        return f"{self._scheme}://{HOST}:{self.port}"

    def start(self) -> Etcd:
        """Start, and return when it listens. Raises ProcessError."""
        self._service.start().wait_until(lambda: is_open(self.port), _START_S)
        return self

    def stop(self) -> None:
        """End it and remove its data."""
        self._service.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Etcd:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
