"""A feed's sink URI, with TiCDC's parameters: `kafka://host:port/topic?protocol=avro&...` or `file:///folder?...`.

Rule: an unknown parameter is an error that lists the known ones; nothing is ignored (MISSION S2-01, S2-35).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from binlake.config.protocols import PROTOCOLS, Options, read_options
from binlake.config.storage import SCHEMES as STORAGE_SCHEMES
from binlake.config.storage import SECRETS as STORAGE_SECRETS
from binlake.config.storage import StorageSection, read_storage, require_fits
from binlake.config.uriwords import UriWords, join_names
from binlake.errors import ConfigError

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
