"""A feed's sink URI, with TiCDC's parameters: `kafka://host:port/topic?protocol=avro&...` or `file:///folder?...`.

Rule: a word that is not known is an error that lists the known ones; nothing is passed over (MISSION S2-01, S2-35).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from binlake.errors import ConfigError

PROTOCOLS = ("avro",)
"""What a feed can write."""
_SCHEMES = ("kafka", "kafka+ssl", "file")
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_DEFAULT_PORT = 9092
_MOST_BYTES = 10 << 20
"""TiCDC's default of max-message-bytes."""


@dataclass(frozen=True)
class AvroOptions:
    """`namespace`: the changefeed's; `extension`: the three fields of TiDB behind the columns (S2-08).

    `decimals`, `unsigned_bigints`: the handling modes (S2-31, S2-32). `floats`: FLOAT as the page's `double` or newer
    TiCDC's `float`; `extension_defaults`: newer TiCDC's defaults of the three fields (MISSION X-13). `time_zone`: that
    TIMESTAMP values are shown in.
    """

    namespace: str = "default"
    extension: bool = False
    decimals: Literal["precise", "string"] = "precise"
    unsigned_bigints: Literal["long", "string"] = "long"
    floats: Literal["double", "float"] = "double"
    extension_defaults: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class Kafka:
    """How the producer reaches the brokers; files are PEM. `password` is never shown."""

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
    """A parsed sink URI; `kafka` or `folder` says where to, `avro` how; `topic` is the one in the path, or empty."""

    protocol: str
    avro: AvroOptions
    kafka: Kafka | None = None
    folder: str = ""
    topic: str = ""


def parse_sink_uri(text: str) -> SinkUri:
    """Read a sink URI. Raises ConfigError naming the part that is wrong, without its credentials."""
    parts = urlsplit(text)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(
            "a sink URI has an unknown scheme", where={"scheme": parts.scheme}, hint=f"use one of {_list(_SCHEMES)}"
        )
    words = _Words(parts)
    uri = SinkUri(words.one_of("protocol", PROTOCOLS, ""), _avro(words))
    if parts.scheme == "file":
        uri = replace(uri, folder=_folder(parts))
    else:
        uri = replace(uri, kafka=_kafka(parts, words), topic=unquote(parts.path).strip("/"))
    words.require_all_read()
    return uri


def _avro(words: _Words) -> AvroOptions:
    return AvroOptions(
        extension=words.truth("enable-tidb-extension", False),
        decimals=words.one_of("avro-decimal-handling-mode", ("precise", "string"), "precise"),  # type: ignore[arg-type]
        unsigned_bigints=words.one_of("avro-bigint-unsigned-handling-mode", ("long", "string"), "long"),  # type: ignore[arg-type]
        floats=words.one_of("avro-float-type", ("double", "float"), "double"),  # type: ignore[arg-type]
        extension_defaults=words.truth("avro-extension-defaults", False),
    )


def _kafka(parts: SplitResult, words: _Words) -> Kafka:
    brokers = tuple(_broker(host) for host in parts.netloc.rpartition("@")[2].split(",") if host)
    if not brokers:
        raise ConfigError("a sink URI names no broker", hint="write kafka://127.0.0.1:9092/topic?protocol=avro")
    return Kafka(
        brokers,
        tls=parts.scheme == "kafka+ssl" or words.truth("enable-tls", False),
        ca=words.text("ca"),
        cert=words.text("cert"),
        key=words.text("key"),
        sasl_mechanism=words.text("sasl-mechanism").upper(),
        sasl_user=words.text("sasl-user"),
        sasl_password=words.text("sasl-password"),
        compression=words.one_of("compression", _COMPRESSIONS, "none"),
        max_message_bytes=words.number("max-message-bytes", _MOST_BYTES, least=1),
        partitions=words.number("partition-num", 0, least=0),
        replication_factor=words.number("replication-factor", 1, least=1),
        auto_create_topic=words.truth("auto-create-topic", True),
        client_id=words.text("kafka-client-id"),
    )


def _folder(parts: SplitResult) -> str:
    if parts.netloc or not parts.path.strip("/"):
        raise ConfigError(
            "a file sink needs an absolute folder", hint="write file:///var/lib/binlake/feed?protocol=avro"
        )
    return unquote(parts.path)


def _broker(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return f"{text}:{_DEFAULT_PORT}"
    if not port.isdecimal():
        raise ConfigError("a broker's port is not a number", where={"broker": text})
    return f"{host}:{port}"


class _Words:
    """The parameters of a URI, each to be read once."""

    def __init__(self, parts: SplitResult) -> None:
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self._left: dict[str, str] = dict(pairs)
        self._read: list[str] = []
        if len(pairs) != len(self._left):
            raise ConfigError(
                "a parameter of a sink URI is given twice", where={"parameters": _list(n for n, _ in pairs)}
            )

    def text(self, name: str, default: str = "") -> str:
        self._read.append(name)
        return self._left.pop(name, default)

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise self._bad(name, value, f"use one of {_list(allowed)}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self.text(name, "true" if default else "false")
        if value not in ("true", "false"):
            raise self._bad(name, value, "use true or false")
        return value == "true"

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self.text(name, str(default))
        if not value.isdecimal() or int(value) < least:
            raise self._bad(name, value, f"use a whole number of at least {least}")
        return int(value)

    def require_all_read(self) -> None:
        """Raises ConfigError naming the parameters that nothing has read."""
        if self._left:
            raise ConfigError(
                "a sink URI has unknown parameters",
                where={"parameters": _list(self._left)},
                hint=f"known here: {_list(sorted(self._read))}",
            )

    def _bad(self, name: str, value: str, hint: str) -> ConfigError:
        return ConfigError("a parameter of a sink URI has a wrong value", where={name: value}, hint=hint)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def mask_sink_uri(text: str) -> str:
    """The URI as pages and logs show it: without passwords."""
    parts = urlsplit(text)
    hidden: Mapping[str, str] = {"sasl-password": "***"}
    words = [f"{name}={hidden.get(name, value)}" for name, value in parse_qsl(parts.query, keep_blank_values=True)]
    _, at, hosts = parts.netloc.rpartition("@")
    return parts._replace(netloc=("***@" if at else "") + hosts, query="&".join(words)).geturl()
