"""Decode Debezium's JSON from its schema block alone, as a Kafka Connect sink does, to Python values."""

from __future__ import annotations

import base64
import json
from datetime import date, datetime, timedelta
from typing import Any

Values = dict[str, Any]
_EPOCH = datetime(1970, 1, 1)
_LIMITS = {"int16": 1 << 15, "int32": 1 << 31, "int64": 1 << 63}


def decode_debezium(message: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (schema, payload), with the payload checked against the schema and converted by it."""
    whole = json.loads(message)
    return whole["schema"], _struct(whole["schema"], whole["payload"])


def _struct(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        assert schema["optional"]
        return None
    return {field["field"]: _value(field, value.get(field["field"])) for field in schema["fields"]}


def _value(field: dict[str, Any], value: Any) -> Any:
    if field["type"] == "struct":
        return _struct(field, value)
    if value is None:
        assert field["optional"], field
        return None
    kind = field["type"]
    if kind in _LIMITS:
        assert isinstance(value, int)
        assert -_LIMITS[kind] <= value < _LIMITS[kind]
    elif kind in ("float", "double"):
        assert isinstance(value, int | float)
    elif kind == "boolean":
        assert isinstance(value, bool)
    else:
        assert isinstance(value, str)
    return _convert(field, value)


def _convert(field: dict[str, Any], value: Any) -> Any:
    match field.get("name", ""):
        case "io.debezium.time.Date":
            return _day(value)
        case "io.debezium.time.Timestamp":
            return _EPOCH + timedelta(milliseconds=value)
        case "io.debezium.time.MicroTimestamp":
            return _EPOCH + timedelta(microseconds=value)
        case "io.debezium.time.MicroTime":
            return timedelta(microseconds=value)
        case "io.debezium.data.Bits":
            return int.from_bytes(base64.b64decode(value), "little")
        case _:
            return value


def _day(days: int) -> date:
    return _EPOCH.date() + timedelta(days=days)
