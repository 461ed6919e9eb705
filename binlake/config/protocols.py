"""The protocols that a feed can write, and the parameters that each of them has in a sink URI.

Rule: a parameter of another protocol is refused by name, since this protocol does not read it. Each parameter is read
once; an unknown one is an error that lists the known ones, and nothing is ignored (MISSION S2-01, S2-35).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import SplitResult, parse_qsl

from binlake.errors import ConfigError


class UriWords:
    """The parameters of a URI, each of which is read once."""

    def __init__(self, parts: SplitResult) -> None:
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        self._left: dict[str, str] = dict(pairs)
        self._read: list[str] = []
        if len(pairs) != len(self._left):
            raise ConfigError(
                "a parameter of a sink URI is given twice", where={"parameters": join_names(n for n, _ in pairs)}
            )

    def read_text(self, name: str, default: str = "") -> str:
        """The parameter `name` as text."""
        self._read.append(name)
        return self._left.pop(name, default)

    def read_choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """The parameter as one of the `allowed` values. Raises ConfigError."""
        value = self.read_text(name, default)
        if value not in allowed:
            raise self._build_wrong_value_error(name, value, f"use one of {join_names(allowed)}")
        return value

    def read_boolean(self, name: str, default: bool) -> bool:
        """The parameter as a boolean, `true` or `false`. Raises ConfigError."""
        value = self.read_text(name, "true" if default else "false")
        if value not in ("true", "false"):
            raise self._build_wrong_value_error(name, value, "use true or false")
        return value == "true"

    def read_number(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        """The parameter as a whole number from `least` to `most`. Raises ConfigError."""
        value = self.read_text(name, str(default))
        if not value.isdecimal() or int(value) < least or (most is not None and int(value) > most):
            upto = "" if most is None else f" and at most {most}"
            raise self._build_wrong_value_error(name, value, f"use a whole number of at least {least}{upto}")
        return int(value)

    def require_all_read(self) -> None:
        """Raises ConfigError, naming the parameters that have not been read."""
        if self._left:
            raise ConfigError(
                "a sink URI has unknown parameters",
                where={"parameters": join_names(self._left)},
                hint=f"known here: {join_names(sorted(self._read))}",
            )

    def _build_wrong_value_error(self, name: str, value: str, hint: str) -> ConfigError:
        return ConfigError("a parameter of a sink URI has a wrong value", where={name: value}, hint=hint)


def join_names(names: Iterable[str]) -> str:
    """The names with commas."""
    return ", ".join(names)


@dataclass(frozen=True)
class AvroOptions:
    """`namespace`: that of the changefeed; `extension`: add TiDB's three fields after the columns (S2-08).

    `decimals`, `unsigned_bigints`: the handling modes (S2-31, S2-32). `floats`: FLOAT as `double`, as TiCDC's page has
    it, or as newer TiCDC's `float`; `extension_defaults`: newer TiCDC's defaults of the three fields (MISSION X-13).
    `time_zone`: the zone in which TIMESTAMP values are written.
    """

    protocol: ClassVar[str] = "avro"
    namespace: str = "default"
    extension: bool = False
    decimals: Literal["precise", "string"] = "precise"
    unsigned_bigints: Literal["long", "string"] = "long"
    floats: Literal["double", "float"] = "double"
    extension_defaults: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class CanalJsonOptions:
    """`extension`: add `_tidb` with commitTs, and watermarks. `raw_updates`: an update of the key stays one message.

    `delete_keys_only`: a deletion has only the columns of the key. `time_zone`: the zone in which TIMESTAMP values are
    written.
    """

    protocol: ClassVar[str] = "canal-json"
    extension: bool = False
    raw_updates: bool = False
    delete_keys_only: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class CsvOptions:
    """As `Csv` of a feed's section; `terminator`: the line end.

    `time_zone`: the zone in which TIMESTAMP values are written.
    """

    protocol: ClassVar[str] = "csv"
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
    """`old_values`: an update also has the row before it.

    `raw_updates`, `delete_keys_only`, `time_zone`: as for Canal-JSON.
    """

    protocol: ClassVar[str] = "open-protocol"
    old_values: bool = True
    raw_updates: bool = False
    delete_keys_only: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class DebeziumOptions:
    """`extension`: add `tidb_type` to the schemas, and watermarks. `cluster`: the `name` of the source.

    `schemas`: each message contains its schema. `old_values`, `raw_updates`, `time_zone`: as for the other protocols,
    but a TIMESTAMP is written in UTC whatever the zone, as Debezium does.
    """

    protocol: ClassVar[str] = "debezium"
    extension: bool = False
    cluster: str = "default"
    schemas: bool = True
    old_values: bool = True
    raw_updates: bool = False
    time_zone: str = "UTC"


@dataclass(frozen=True)
class SlaveBinlogOptions:
    """`time_zone`: the zone in which TIMESTAMP values are written; the drainer used that of its machine."""

    protocol: ClassVar[str] = "slave-binlog"
    time_zone: str = "UTC"


@dataclass(frozen=True)
class PbOptions:
    """`time_zone`: the zone in which TIMESTAMP values are written; the drainer used that of its machine."""

    protocol: ClassVar[str] = "pb"
    time_zone: str = "UTC"


Options = (
    AvroOptions | CanalJsonOptions | CsvOptions | OpenProtocolOptions | DebeziumOptions | SlaveBinlogOptions | PbOptions
)
"""The options that determine the bytes of a protocol's messages."""


def _read_avro_options(words: UriWords) -> AvroOptions:
    return AvroOptions(
        extension=words.read_boolean("enable-tidb-extension", False),
        decimals=words.read_choice("avro-decimal-handling-mode", ("precise", "string"), "precise"),  # type: ignore[arg-type]
        unsigned_bigints=words.read_choice("avro-bigint-unsigned-handling-mode", ("long", "string"), "long"),  # type: ignore[arg-type]
        floats=words.read_choice("avro-float-type", ("double", "float"), "double"),  # type: ignore[arg-type]
        extension_defaults=words.read_boolean("avro-extension-defaults", False),
    )


def _read_canal_json_options(words: UriWords) -> CanalJsonOptions:
    return CanalJsonOptions(
        extension=words.read_boolean("enable-tidb-extension", False),
        raw_updates=words.read_boolean("output-raw-change-event", False),
        delete_keys_only=words.read_boolean("delete-only-output-handle-key-columns", False),
    )


def _read_csv_options(_words: UriWords) -> CsvOptions:
    return CsvOptions()


def _read_open_protocol_options(words: UriWords) -> OpenProtocolOptions:
    return OpenProtocolOptions(
        old_values=words.read_boolean("output-old-value", True),
        raw_updates=words.read_boolean("output-raw-change-event", False),
        delete_keys_only=words.read_boolean("delete-only-output-handle-key-columns", False),
    )


def _read_debezium_options(words: UriWords) -> DebeziumOptions:
    return DebeziumOptions(
        extension=words.read_boolean("enable-tidb-extension", False),
        cluster=words.read_text("cluster-id", "default"),
        schemas=not words.read_boolean("debezium-disable-schema", False),
        old_values=words.read_boolean("output-old-value", True),
        raw_updates=words.read_boolean("output-raw-change-event", False),
    )


def _read_slave_binlog_options(_words: UriWords) -> SlaveBinlogOptions:
    return SlaveBinlogOptions()


def _read_pb_options(_words: UriWords) -> PbOptions:
    return PbOptions()


_READERS: Mapping[str, Callable[[UriWords], Options]] = {
    AvroOptions.protocol: _read_avro_options,
    CanalJsonOptions.protocol: _read_canal_json_options,
    CsvOptions.protocol: _read_csv_options,
    OpenProtocolOptions.protocol: _read_open_protocol_options,
    DebeziumOptions.protocol: _read_debezium_options,
    SlaveBinlogOptions.protocol: _read_slave_binlog_options,
    PbOptions.protocol: _read_pb_options,
}
PROTOCOLS = tuple(_READERS)
"""The protocols that a feed can write."""


def read_options(protocol: str, words: UriWords) -> Options:
    """The options of `protocol`, one of PROTOCOLS. Raises ConfigError."""
    return _READERS[protocol](words)
