"""Message headers: the registry is asked for each needed schema once, in message order, and not for other messages."""

from __future__ import annotations

import pyarrow as pa
import pytest

from binlake.config.feed import FeedSection
from binlake.errors import ConfigError
from binlake.feed.messages import MESSAGE_SCHEMA
from binlake.feed.registry import SchemaRefused, SchemaRegistry
from binlake.feed.schemaids import SchemaIds

SCHEMAS = {"ka": '"a"', "va": '"A"', "vb": '"B"'}


def feed(registry: str = "http://127.0.0.1:9") -> FeedSection:
    uri = "kafka://127.0.0.1:9092/t?protocol=avro"
    return FeedSection.model_validate({"name": "f", "sink-uri": uri, "schema-registry": registry})


def messages(*rows: tuple[str, str | None, str | None, bytes | None]) -> pa.Table:
    """Messages of (topic, schema of the key, schema of the value, value)."""
    names = ("topic", "key_schema", "value_schema", "value")
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) | {"key": b"k%d" % n} for n, row in enumerate(rows)], MESSAGE_SCHEMA
    )


class Asked:
    """A registry that numbers the requested schemas from 1, and refuses one schema."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.asked = refused, list[tuple[str, str]]()

    def id_of(self, subject: str, schema: str) -> int:
        self.asked.append((subject, schema))
        if schema == self.refused:
            raise SchemaRefused("no")
        return len(self.asked)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    registry = Asked()
    monkeypatch.setattr(SchemaRegistry, "require_answer", lambda _: None)
    monkeypatch.setattr(SchemaRegistry, "register_schema", lambda _, subject, schema: registry.id_of(subject, schema))
    return registry


def bodies(table: pa.Table) -> list[tuple[bytes, bytes | None]]:
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


# S2-13, S2-37, S2-44
def test_each_schema_is_requested_once_in_message_order(asked: Asked) -> None:
    rows = messages(("x", "ka", "va", b"1"), ("y", "ka", "vb", None), ("x", "ka", "va", b"3"), ("x", "ka", "vb", b"4"))
    with SchemaIds(feed()) as ids:
        ready = ids.add_headers(rows, SCHEMAS)
        assert ids.add_headers(rows, SCHEMAS) == ready
    assert asked.asked == [("x-key", '"a"'), ("x-value", '"A"'), ("y-key", '"a"'), ("x-value", '"B"')]
    assert bodies(ready) == [
        (b"\0\0\0\0\x01k0", b"\0\0\0\0\x021"),
        (b"\0\0\0\0\x03k1", None),
        (b"\0\0\0\0\x01k2", b"\0\0\0\0\x023"),
        (b"\0\0\0\0\x01k3", b"\0\0\0\0\x044"),
    ]
    assert ready.drop_columns(["key", "value"]) == rows.drop_columns(["key", "value"])


# S2-38
def test_messages_before_a_refused_schema_are_ready(asked: Asked) -> None:
    asked.refused = '"B"'
    with SchemaIds(feed()) as ids:
        ready = ids.add_headers(messages(("x", "ka", "va", b"1"), ("y", "ka", "va", b"2"), ("x", "ka", "vb", b"3")),
                                SCHEMAS)  # fmt: skip
        assert ready["value"].to_pylist() == [b"\0\0\0\0\x021", b"\0\0\0\0\x042"]
        assert isinstance(ids.refused, SchemaRefused)


def test_messages_without_a_schema_need_no_registry() -> None:
    rows = messages(("x", None, None, b"1"), ("x", None, None, None))
    with SchemaIds(feed(registry="")) as ids:
        assert ids.add_headers(rows, {}) == rows
        with pytest.raises(ConfigError, match="schema-registry"):
            ids.add_headers(messages(("x", "ka", None, b"1")), SCHEMAS)
