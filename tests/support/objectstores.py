"""The kinds of object stores that can have a lake, each with a real server: S3 (moto) and Azure's storage (Azurite)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deploy.local.azurite import ACCOUNT, KEY, Azurite
from deploy.local.s3 import S3

S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "key-of-nobody"}
AZURE_ENVIRONMENT = {"AZURE_STORAGE_ACCOUNT_KEY": KEY}


@dataclass(frozen=True)
class ObjectStore:
    """A server at `port` of loopback; `environment` has the credentials. `create` makes a bucket or container."""

    kind: str
    port: int
    environment: Mapping[str, str]
    create: Callable[[str], None]

    def locate(self, bucket: str) -> str:
        """The URI of a bucket or container."""
        return f"s3://{bucket}" if self.kind == "s3" else f"abfss://{bucket}@{ACCOUNT}.dfs.core.windows.net"

    def build_endpoint(self, url: str) -> str:
        """The endpoint of the server, or of a proxy in front of it, at `url`."""
        return url if self.kind == "s3" else f"{url}/{ACCOUNT}"


def describe_s3(server: S3) -> ObjectStore:
    """`server`, which accepts any credentials."""
    return ObjectStore("s3", server.port, S3_ENVIRONMENT, server.create_bucket)


def describe_azurite(server: Azurite) -> ObjectStore:
    """`server`, which checks the signature of each request."""
    return ObjectStore("azure", server.port, AZURE_ENVIRONMENT, server.create_container)
