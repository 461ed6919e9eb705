"""Where lakes are, and how this process reaches those in an object store: what each kind of store needs of the clients.

A lake has three clients: delta-rs, Arrow and obstore. Importing this loads none of them: pages and lineage read paths.

Rule: endpoint and region are those that the replication names, else those of the environment. Credentials are those of
the Airflow connection that the replication names, else what a store's client finds in the environment or the machine. A
commit is a put on a condition, so of two writers of one version the store refuses one (hazards R-41).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import urlsplit

from binlake.common.secrets import is_defined, resolve_secret

if TYPE_CHECKING:
    import pyarrow.fs as fs
    from obstore.store import AzureConfig, AzureStore, RetryConfig, S3Config, S3Store

    Objects: TypeAlias = S3Store | AzureStore

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


_ATTEMPTS = 8
"""Of Arrow for a request, with growing pauses; its default of 3 gives up within a second."""
_DELTA_RETRIES = {"max_retries": "10", "retry_timeout": "60s"}


class Provider(Protocol):
    """A kind of store. `title`: the one that is asked without an endpoint; `bucket`: what it calls a place for objects;
    `credentials`: where a client looks for them, for people; `no_match`: a value of If-Match that no object has.
    `keys`: name and secret, None = none given."""

    title: str
    bucket: str
    credentials: str
    no_match: str

    def build_delta_options(self, access: Access, keys: Keys | None) -> dict[str, str]:
        """The storage options of delta-rs."""

    def build_files(self, path: str, /, access: Access, keys: Keys | None) -> fs.FileSystem:
        """Arrow's own file system, whose paths begin with the bucket or container."""

    def build_objects(self, path: str, access: Access, keys: Keys | None, retry_s: float) -> Objects:
        """The objects below `path`; an error is tried again for `retry_s`."""


def _build_retries(retry_s: float) -> RetryConfig:
    return {"max_retries": 10, "retry_timeout": timedelta(seconds=retry_s)}


class S3Provider:
    """AWS S3, and stores that are compatible with it: `s3://bucket/prefix`."""

    title = "AWS"
    bucket = "bucket"
    credentials = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity or the machine's role"
    no_match = '"00000000000000000000000000000000"'

    def build_delta_options(self, access: Access, keys: Keys | None) -> dict[str, str]:
        options = {"aws_region": access.region, "aws_conditional_put": "etag", **_DELTA_RETRIES}
        if access.endpoint:
            options |= {"aws_endpoint_url": access.endpoint, "aws_allow_http": str(access.is_plain).lower()}
        if keys is not None:
            options |= {"aws_access_key_id": keys[0], "aws_secret_access_key": keys[1]}
        return options

    def build_files(self, _path: str, /, access: Access, keys: Keys | None) -> fs.FileSystem:
        return _build_s3_files(access, keys)

    def build_objects(self, path: str, access: Access, keys: Keys | None, retry_s: float) -> Objects:
        from obstore.store import S3Store

        bucket, _, prefix = locate_below(path).partition("/")
        config: S3Config = {"region": access.region}
        if access.endpoint:
            config["endpoint"] = access.endpoint
        if keys is not None:
            config["access_key_id"], config["secret_access_key"] = keys
        return S3Store(
            bucket,
            prefix=prefix,
            config=config,
            client_options={"allow_http": access.is_plain},
            retry_config=_build_retries(retry_s),
        )


@lru_cache(maxsize=64)
def _build_s3_files(access: Access, keys: Keys | None) -> fs.FileSystem:
    import pyarrow.fs as fs

    scheme, _, host = access.endpoint.rpartition("://")
    # The other clients of a store read this variable themselves.
    own = {"tls_ca_file_path": file} if (file := os.environ.get("SSL_CERT_FILE")) else {}
    if keys is not None:
        own |= {"access_key": keys[0], "secret_key": keys[1]}
    # Opened late, a small file is one put instead of the three requests of an upload in parts.
    return fs.S3FileSystem(
        region=access.region,
        endpoint_override=host or None,
        scheme=scheme or "https",
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **own,
    )


class AzureProvider:
    """Azure's storage: `abfss://container@account.dfs.core.windows.net/prefix`.

    The secret of a connection is the account's key; its login is not used, the path names the account. An endpoint, as
    of an emulator, ends with the account's name.
    """

    title = "Azure"
    bucket = "container"
    credentials = (
        "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, a service principal (AZURE_TENANT_ID, AZURE_CLIENT_ID,"
        " AZURE_CLIENT_SECRET), a workload identity or the machine's identity"
    )
    no_match = '"0x0000000000000000"'

    def build_delta_options(self, access: Access, keys: Keys | None) -> dict[str, str]:
        options = dict(_DELTA_RETRIES)
        if access.endpoint:
            options |= {"azure_storage_endpoint": access.endpoint, "allow_http": str(access.is_plain).lower()}
        if keys is not None:
            options["azure_storage_account_key"] = keys[1]
        return options

    def build_files(self, path: str, access: Access, keys: Keys | None) -> fs.FileSystem:
        key = keys[1] if keys is not None else os.environ.get("AZURE_STORAGE_ACCOUNT_KEY")
        token = None if key else os.environ.get("AZURE_STORAGE_SAS_TOKEN")
        return _build_azure_files(_find_account(path), access, key, token)

    def build_objects(self, path: str, access: Access, keys: Keys | None, retry_s: float) -> Objects:
        from obstore.store import AzureStore

        container, _, prefix = locate_below(path).partition("/")
        config: AzureConfig = {"account_name": _find_account(path)}
        if access.endpoint:
            config["endpoint"] = access.endpoint
        if keys is not None:
            config["account_key"] = keys[1]
        return AzureStore(
            container,
            prefix=prefix,
            config=config,
            client_options={"allow_http": access.is_plain},
            retry_config=_build_retries(retry_s),
        )


@lru_cache(maxsize=64)
def _build_azure_files(account: str, access: Access, key: str | None, token: str | None) -> fs.FileSystem:
    import pyarrow.fs as fs

    if not access.endpoint:
        return fs.AzureFileSystem(account, account_key=key, sas_token=token)
    place = urlsplit(access.endpoint)
    # Arrow adds the account to it, as the endpoint does.
    return fs.AzureFileSystem(
        account,
        account_key=key,
        sas_token=token,
        blob_storage_authority=place.netloc,
        blob_storage_scheme=place.scheme,
        dfs_storage_authority=place.netloc,
        dfs_storage_scheme=place.scheme,
    )


def _find_account(path: str) -> str:
    return urlsplit(path).netloc.rpartition("@")[2].partition(".")[0]


_S3, _AZURE = S3Provider(), AzureProvider()


def find_provider(path: str) -> Provider:
    """The kind of the store that has `path`."""
    return _AZURE if path.startswith(AZURE_SCHEME) else _S3
