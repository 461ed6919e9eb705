"""The protocols that a feed can write, and the parameters of a sink URI that each has for itself.

Rule: a parameter of another protocol is refused by name, since nothing here reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from binlake.config.uriwords import UriWords


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
class CanalJsonOptions:
    """`extension`: `_tidb` with commitTs, and watermarks. `raw_updates`: an update of the key stays one message.

    `delete_keys_only`: a deletion shows the columns of the key. `time_zone`: that TIMESTAMP values are shown in.
    """

    extension: bool = False
    raw_updates: bool = False
    delete_keys_only: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class CsvOptions:
    """As `Csv` of a feed's section; `terminator`: the end of a line.

    `time_zone`: that TIMESTAMP values are shown in.
    """

    delimiter: str = ","
    quote: str = '"'
    null: str = "\\N"
    commit_ts: bool = False
    old_value: bool = False
    binary: Literal["base64", "hex"] = "base64"
    terminator: str = "\r\n"
    time_zone: str = "UTC"


@dataclass(frozen=True)
class OpenProtocolOptions:
    """`old_values`: an update shows the row before it.

    `raw_updates`, `delete_keys_only`, `time_zone`: as Canal-JSON's.
    """

    old_values: bool = True
    raw_updates: bool = False
    delete_keys_only: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class DebeziumOptions:
    """`extension`: `tidb_type` in the schemas, and watermarks. `cluster`: the `name` of the source.

    `schemas`: each message carries its schema. `old_values`, `raw_updates`, `time_zone`: as the others'; a TIMESTAMP is
    shown in UTC whatever the zone, as Debezium's.
    """

    extension: bool = False
    cluster: str = "default"
    schemas: bool = True
    old_values: bool = True
    raw_updates: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class SlaveBinlogOptions:
    """`time_zone`: that TIMESTAMP values are shown in; the drainer took that of its machine."""

    time_zone: str = "UTC"


@dataclass(frozen=True)
class PbOptions:
    """`time_zone`: that TIMESTAMP values are shown in; the drainer took that of its machine."""

    time_zone: str = "UTC"


Options = (
    AvroOptions | CanalJsonOptions | CsvOptions | OpenProtocolOptions | DebeziumOptions | SlaveBinlogOptions | PbOptions
)
"""The options that decide the bytes of a protocol's messages."""


def _avro(words: UriWords) -> AvroOptions:
    return AvroOptions(
        extension=words.truth("enable-tidb-extension", False),
        decimals=words.one_of("avro-decimal-handling-mode", ("precise", "string"), "precise"),  # type: ignore[arg-type]
        unsigned_bigints=words.one_of("avro-bigint-unsigned-handling-mode", ("long", "string"), "long"),  # type: ignore[arg-type]
        floats=words.one_of("avro-float-type", ("double", "float"), "double"),  # type: ignore[arg-type]
        extension_defaults=words.truth("avro-extension-defaults", False),
    )


def _canal_json(words: UriWords) -> CanalJsonOptions:
    return CanalJsonOptions(
        extension=words.truth("enable-tidb-extension", False),
        raw_updates=words.truth("output-raw-change-event", False),
        delete_keys_only=words.truth("delete-only-output-handle-key-columns", False),
    )


def _csv(_words: UriWords) -> CsvOptions:
    return CsvOptions()


def _open_protocol(words: UriWords) -> OpenProtocolOptions:
    return OpenProtocolOptions(
        old_values=words.truth("output-old-value", True),
        raw_updates=words.truth("output-raw-change-event", False),
        delete_keys_only=words.truth("delete-only-output-handle-key-columns", False),
    )


def _debezium(words: UriWords) -> DebeziumOptions:
    return DebeziumOptions(
        extension=words.truth("enable-tidb-extension", False),
        cluster=words.text("cluster-id", "default"),
        schemas=not words.truth("debezium-disable-schema", False),
        old_values=words.truth("output-old-value", True),
        raw_updates=words.truth("output-raw-change-event", False),
    )


def _slave_binlog(_words: UriWords) -> SlaveBinlogOptions:
    return SlaveBinlogOptions()


def _pb(_words: UriWords) -> PbOptions:
    return PbOptions()


_READERS: Mapping[str, Callable[[UriWords], Options]] = {
    "avro": _avro,
    "canal-json": _canal_json,
    "csv": _csv,
    "open-protocol": _open_protocol,
    "debezium": _debezium,
    "slave-binlog": _slave_binlog,
    "pb": _pb,
}
PROTOCOLS = tuple(_READERS)
"""The protocols that a feed can write."""


def read_options(protocol: str, words: UriWords) -> Options:
    """The options of `protocol`, one of PROTOCOLS. Raises ConfigError."""
    return _READERS[protocol](words)
