"""Where lakes are, and how this process reaches those in an object store. Without Arrow: pages and lineage read paths.

Rule: endpoint and region are those that the replication names, else those of the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_REGION = "us-east-1"


@dataclass(frozen=True)
class Access:
    """How to reach a store; empty: as the environment says, else AWS."""

    endpoint: str = ""
    region: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether requests are not encrypted."""
        return self.endpoint.startswith("http://")


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
    endpoint = named.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    region = named.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", _REGION)
    return Access(endpoint, region)


def is_remote(path: str) -> bool:
    """Whether `path` is in an object store."""
    return "://" in path
