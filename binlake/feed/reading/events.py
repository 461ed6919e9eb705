"""A message in a topic or file, and its content.

Rule: in JSON a commit_ts is a text (DESIGN 3.12), bytes are upper-case hex and decimals are texts, as in the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from binlake.errors import WireError

_TIMESTAMPS = frozenset({"commit_ts", "_tidb_commit_ts", "commitTs", "watermarkTs", "commitTS"})


_HINT = "check the protocol in the URI"
_ROW = ("key", "value", "before")


@dataclass(frozen=True)
class FeedRecord:
    """A message at `place`: `topic[partition]@offset` or `file:number`."""

    place: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class MessageEvent:
    """The content of a message. `op`: c, u, d, ddl or watermark; None if the message does not have it.

    `commit_ts`: None if the message has none. `key`, `value`, `before`: columns of the row; `message`: the complete
    JSON message.
    """

    place: str
    commit_ts: int | None = None
    db: str = ""
    table: str = ""
    op: str | None = None
    key: Mapping[str, Any] | None = None
    value: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    message: Any = None

    def to_dict(self) -> dict[str, Any]:
        """The event's values for JSON, without missing ones."""
        # A JSON message is shown unchanged, so its row is not repeated.
        parts = {name: one for name, one in vars(self).items() if self.message is None or name not in _ROW}
        values = {name: convert_to_json(value, name) for name, value in parts.items() if value not in (None, "")}
        ordered = {name: values[name] for name in ("commit_ts", "db", "table", "op") if name in values}
        # Show the value null, by which a deletion is recognized.
        null = {"value": None} if self.value is None and self.op == "d" and self.key is not None else {}
        return ordered | null | values


def convert_to_json(value: Any, name: str = "") -> Any:
    """`value` of the key `name` in JSON's types."""
    match value:
        case None | bool() | float() | str():
            return value
        case int():
            return str(value) if name in _TIMESTAMPS else value
        case bytes():
            return value.hex().upper()
        case Decimal():
            return str(value)
        case date() | datetime():
            return value.isoformat()
        case Mapping():
            return {str(key): convert_to_json(each, str(key)) for key, each in value.items()}
        case _:
            return [convert_to_json(each, name) for each in value]


def build_undecodable_error(record: FeedRecord, why: str) -> WireError:
    """The error for a message that does not match its protocol."""
    return WireError(f"a message cannot be decoded: {why}", where={"at": record.place}, hint=_HINT)
