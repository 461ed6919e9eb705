"""A feed's sink URI, with TiCDC's parameters: `kafka://host:port/topic?protocol=avro&...` or `file:///folder?...`.

Rule: an unknown parameter is an error that lists the known ones; nothing is ignored (MISSION S2-01, S2-35).

Files are stored in a folder or a bucket: `file:///folder`, `s3://bucket/prefix`, `gs://` or `gcs://`, `azure://` or
`azblob://container/prefix`. Without credentials in the URI, the store's client uses its default sources: environment,
files, the machine's role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from binlake.common.filestore import StoreAddress
from binlake.config.protocols import PROTOCOLS, Options, UriWords, join_names, read_options
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
STORAGE_SCHEMES = tuple(_ACCESS)
"""Schemes of file sinks."""
FILES_ALONE = ("csv", "pb")
"""Protocols that only files can have."""
STORAGE_PROTOCOLS = ("avro", "canal-json", *FILES_ALONE)
"""Protocols that files can have."""
BINLOG_FILES = "pb"
"""The protocol of TiDB's drainer: one sequence of binlog files, not one folder per table."""
COMPRESSIONS = ("none", "gzip", "zstd")
"""Names for the compression of binlog files."""
STORAGE_SECRETS = ("secret-access-key", "session-token", "account-key", "sas-token")
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
    if scheme in _ACCESS and protocol not in STORAGE_PROTOCOLS:
        raise ConfigError(
            "a feed cannot write files in this protocol",
            where={"protocol": protocol},
            hint=f"use one of {join_names(STORAGE_PROTOCOLS)}",
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
    if parts.scheme not in STORAGE_SCHEMES:
        raise ConfigError(
            "a URI of files has an unknown scheme",
            where={"scheme": parts.scheme},
            hint=f"use one of {join_names(STORAGE_SCHEMES)}",
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


_SCHEMES = ("kafka", "kafka+ssl", *STORAGE_SCHEMES)
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_DEFAULT_PORT = 9092
_SECRETS = frozenset({"sasl-password", *STORAGE_SECRETS})
_MOST_BYTES = 10 << 20
"""TiCDC's default of max-message-bytes."""


@dataclass(frozen=True)
class KafkaConnection:
    """The producer's connection to the brokers; files are PEM. `password` is never shown."""

    brokers: tuple[str, ...]
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    sasl_mechanism: str = ""
    sasl_user: str = ""
    sasl_password: str = field(default="", repr=False)
    compression: str = "none"
    max_message_bytes: int = _MOST_BYTES
    partitions: int = 0
    replication_factor: int = 1
    auto_create_topic: bool = True
    client_id: str = ""


@dataclass(frozen=True)
class SinkUri:
    """A parsed sink URI: destination (`kafka` or `storage`), the protocol's `options`, `topic` in the path or empty."""

    protocol: str
    options: Options
    kafka: KafkaConnection | None = None
    storage: StorageSection | None = None
    topic: str = ""


def parse_sink_uri(text: str) -> SinkUri:
    """Parse a sink URI. Raises ConfigError, which names the wrong part, without credentials."""
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(
            "a sink URI has an unknown scheme",
            where={"scheme": parts.scheme},
            hint=f"use one of {join_names(_SCHEMES)}",
        )
    words = UriWords(parts)
    protocol = words.read_choice("protocol", PROTOCOLS, "")
    require_fits(protocol, parts.scheme)
    uri = SinkUri(protocol, read_options(protocol, words))
    if parts.scheme in STORAGE_SCHEMES:
        uri = replace(uri, storage=read_storage(parts, words, protocol))
    else:
        uri = replace(uri, kafka=_read_kafka(parts, words), topic=unquote(parts.path).strip("/"))
    words.require_all_read()
    return uri


def _read_kafka(parts: SplitResult, words: UriWords) -> KafkaConnection:
    brokers = tuple(_parse_broker(host) for host in parts.netloc.rpartition("@")[2].split(",") if host)
    if not brokers:
        raise ConfigError("a sink URI names no broker", hint="write kafka://127.0.0.1:9092/topic?protocol=avro")
    return KafkaConnection(
        brokers,
        tls=parts.scheme == "kafka+ssl" or words.read_boolean("enable-tls", False),
        ca=words.read_text("ca"),
        cert=words.read_text("cert"),
        key=words.read_text("key"),
        sasl_mechanism=words.read_text("sasl-mechanism").upper(),
        sasl_user=words.read_text("sasl-user"),
        sasl_password=words.read_text("sasl-password"),
        compression=words.read_choice("compression", _COMPRESSIONS, "none"),
        max_message_bytes=words.read_number("max-message-bytes", _MOST_BYTES, least=1),
        partitions=words.read_number("partition-num", 0, least=0),
        replication_factor=words.read_number("replication-factor", 1, least=1),
        auto_create_topic=words.read_boolean("auto-create-topic", True),
        client_id=words.read_text("kafka-client-id"),
    )


def _parse_broker(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return f"{text}:{_DEFAULT_PORT}"
    if not port.isdecimal():
        raise ConfigError("a broker's port is not a number", where={"broker": text})
    return f"{host}:{port}"


def mask_sink_uri(text: str) -> str:
    """The URI without passwords, for pages and logs."""
    parts = urlsplit(text)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    words = [f"{name}={'***' if name in _SECRETS else value}" for name, value in pairs]
    _, at, hosts = parts.netloc.rpartition("@")
    return parts._replace(netloc=("***@" if at else "") + hosts, query="&".join(words)).geturl()


def mask_credentials(text: str) -> str:
    """A URL, or a text with URLs, without user and password, for pages and logs."""
    return re.sub(r"://[^/]*@", "://***@", text)
