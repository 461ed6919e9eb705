"""Where lakes are, and how this process reaches those in an object store. Without Arrow: pages and lineage read paths.

Rule: endpoint and region are those that the replication names, else those of the environment. Credentials are those of
the Airflow connection that the replication names, else what a store's client finds in the environment or the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TypeAlias

from binlake.base.secrets import is_defined, resolve_secret

AZURE_SCHEME = "abfss://"
_REGION = "us-east-1"

Keys: TypeAlias = tuple[str, str]
"""Key id and secret key; login and password of a connection."""


@dataclass(frozen=True)
class Access:
    """How to reach a store; empty: as the environment says, else AWS or Azure. `credentials`: names an Airflow
    connection."""

    endpoint: str = ""
    region: str = ""
    credentials: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether requests are not encrypted."""
        return self.endpoint.startswith("http://")

    def read_keys(self) -> Keys | None:
        """Key id and secret key of the connection; None: the store's client finds them itself. Raises ConfigError."""
        if not self.credentials:
            return None
        key = "lake.storage.credentials"
        return resolve_secret(self.credentials, key, "user"), resolve_secret(self.credentials, key)

    def drop_unknown_credentials(self) -> Access:
        """For an executor, which may have keys or a role of its own instead of the connection."""
        return self if is_defined(self.credentials) else replace(self, credentials="")


_accesses: dict[str, Access] = {}


def register_access(root: str, access: Access) -> None:
    """Let this process reach the lake at `root`, and all that is below it, by `access`."""
    _accesses[root] = access


def list_accesses() -> tuple[tuple[str, Access], ...]:
    """By root, how this process reaches its lakes: for other processes, whose environment may not say it."""
    return tuple((root, find_access(root)) for root in _accesses)


def find_access(path: str) -> Access:
    """How to reach `path`."""
    named = next((own for root, own in _accesses.items() if path == root or path.startswith(f"{root}/")), Access())
    if path.startswith(AZURE_SCHEME):
        endpoint = named.endpoint or os.environ.get("AZURE_STORAGE_ENDPOINT", "")
        return Access(endpoint, "", named.credentials)
    endpoint = named.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    region = named.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", _REGION)
    return Access(endpoint, region, named.credentials)


def is_remote(path: str) -> bool:
    """Whether `path` is in an object store."""
    return "://" in path


def locate_below(path: str) -> str:
    """`path`, which is in an object store, as `bucket/prefix`, or `container/prefix`."""
    place, _, below = path.partition("://")[2].partition("/")
    bucket = place.partition("@")[0] if path.startswith(AZURE_SCHEME) else place
    return f"{bucket}/{below}" if below else bucket
