"""The storage of a feed's files: a folder or a bucket, with the parameters of TiCDC's storage sink in the sink URI.

`file:///folder`, `s3://bucket/prefix`, `gs://` or `gcs://`, `azure://` or `azblob://container/prefix`. Without
credentials in the URI, the store's client uses its default sources: environment, files, the machine's role.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from binlake.base.filestore import StoreAddress
from binlake.config.uriwords import UriWords, join_names
from binlake.errors import ConfigError

_GOOGLE = ("endpoint",)
_AZURE = ("account-name", "account-key", "sas-token", "endpoint")
_ACCESS: Mapping[str, tuple[str, ...]] = {
    "file": (),
    "s3": ("endpoint", "region", "access-key", "secret-access-key", "session-token"),
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "azure": _AZURE,
    "azblob": _AZURE,
}
SCHEMES = tuple(_ACCESS)
"""Schemes of file sinks."""
FILES_ALONE = ("csv", "pb")
"""Protocols that only files can have."""
PROTOCOLS = ("avro", "canal-json", *FILES_ALONE)
"""Protocols that files can have."""
BINLOG_FILES = "pb"
"""The protocol of TiDB's drainer: one sequence of binlog files, not one folder per table."""
COMPRESSIONS = ("none", "gzip", "zstd")
"""Names for the compression of binlog files."""
SECRETS = ("secret-access-key", "session-token", "account-key", "sas-token")
"""Parameters that are hidden in pages and logs."""
DATE_SEPARATORS = ("none", "year", "month", "day")
# TiCDC's defaults and limits.
_FILE_SIZE, _LEAST_FILE_SIZE, _MOST_FILE_SIZE = 64 << 20, 1 << 20, 512 << 20
_INDEX_WIDTH, _LEAST_INDEX_WIDTH = 20, 6
_BINLOG_FILE_SIZE = 512 << 20
"""The drainer's file size."""


@dataclass(frozen=True)
class StorageSection(StoreAddress):
    """The storage of a feed's files.

    A file ends after the transaction with which it reaches `file_size`. `index_width`: digits of a file's number.
    `compression` and `retention_days` (0 = for ever) apply to binlog files only.
    """

    file_size: int = _FILE_SIZE
    date_separator: str = "day"
    index_width: int = _INDEX_WIDTH
    compression: str = "none"
    retention_days: int = 0


COMPRESSED = (
    "the original's reparo reads only files without compression (it ends with `magic mismatch`); Binlake's reads all"
)
"""What to know of a compression of binlog files."""


def require_fits(protocol: str, scheme: str) -> None:
    """Raises ConfigError if messages of `protocol` cannot be written to such a sink."""
    if scheme in _ACCESS and protocol not in PROTOCOLS:
        raise ConfigError(
            "a feed cannot write files in this protocol",
            where={"protocol": protocol},
            hint=f"use one of {join_names(PROTOCOLS)}",
        )
    if scheme not in _ACCESS and protocol in FILES_ALONE:
        alternative = "canal-json" if protocol == "csv" else "slave-binlog"
        raise ConfigError(
            f"{protocol} is for files only", hint=f"write file:///folder?protocol={protocol}, or take {alternative}"
        )


def read_storage(parts: SplitResult, words: UriWords, protocol: str = "") -> StorageSection:
    """The storage that a sink URI names, for files of `protocol`. Raises ConfigError."""
    address = read_address(parts, words)
    place = (address.scheme, address.root, address.access)
    if protocol == BINLOG_FILES:
        return StorageSection(
            *place,
            words.read_number("file-size", _BINLOG_FILE_SIZE, least=_LEAST_FILE_SIZE, most=_MOST_FILE_SIZE),
            compression=words.read_choice("compression", COMPRESSIONS, "none"),
            retention_days=words.read_number("retention-time", 0, least=0),
        )
    return StorageSection(
        *place,
        words.read_number("file-size", _FILE_SIZE, least=_LEAST_FILE_SIZE, most=_MOST_FILE_SIZE),
        words.read_choice("date-separator", DATE_SEPARATORS, "day"),
        words.read_number("file-index-width", _INDEX_WIDTH, least=_LEAST_INDEX_WIDTH, most=_INDEX_WIDTH),
    )


def list_storage_warnings(storage: StorageSection | None) -> list[str]:
    """What readers of these files have to know."""
    if storage is None or storage.compression == "none":
        return []
    return [f"compression={storage.compression}: {COMPRESSED}"]


def parse_store_address(text: str) -> StoreAddress:
    """Parse a folder, or the URI of a folder or bucket with parameters for access only. Raises ConfigError."""
    if "://" not in text:
        return StoreAddress("file", str(Path(text).expanduser().absolute()))
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            "a URI of files has an unknown scheme",
            where={"scheme": parts.scheme},
            hint=f"use one of {join_names(SCHEMES)}",
        )
    words = UriWords(parts)
    address = read_address(parts, words)
    words.require_all_read()
    return address


def read_address(parts: SplitResult, words: UriWords) -> StoreAddress:
    """The address of the store in a URI. Raises ConfigError."""
    words_of_uri = {name: words.read_text(name) for name in _ACCESS[parts.scheme]}
    root = _read_folder(parts) if parts.scheme == "file" else _read_bucket(parts)
    return StoreAddress(parts.scheme, root, {name: value for name, value in words_of_uri.items() if value})


def _read_folder(parts: SplitResult) -> str:
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigError(
            "a file sink needs an absolute folder", hint="write file:///var/lib/binlake/feed?protocol=avro"
        )
    return unquote(parts.path).rstrip("/")


def _read_bucket(parts: SplitResult) -> str:
    if not parts.netloc or "@" in parts.netloc:
        raise ConfigError("a sink URI names no bucket", hint=f"write {parts.scheme}://bucket/prefix?protocol=avro")
    return f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
