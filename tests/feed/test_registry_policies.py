"""A real schema registry under its policies: which changes of a table it accepts or refuses (S2-38, S2-39)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.tidb_json import INT_PK, Json, column, table_def, table_info

from binlake.config.protocols import AvroOptions
from binlake.feed.avroschema import build_key_schema, build_value_schema
from binlake.feed.registry import SchemaRefused, SchemaRegistry
from binlake.rows.schema import mysqltypes as t

if TYPE_CHECKING:
    from deploy.local.apicurio import Apicurio

pytestmark = pytest.mark.process
ID = column(1, "id", flag=INT_PK)


@pytest.fixture
def registry(schema_registry: Apicurio) -> Iterator[SchemaRegistry]:
    schema_registry.set_compatibility("BACKWARD")
    with SchemaRegistry(schema_registry.url) as registry:
        yield registry


def schema(*cols: Json) -> str:
    return build_value_schema(
        table_def(table_info(1, "t", [ID, *cols], pk_is_handle=True)), AvroOptions(extension=True)
    )


# S2-03, S2-44
def test_new_definition_is_a_new_version_and_an_old_one_keeps_its_id(registry: SchemaRegistry) -> None:
    registry.require_answer()
    first = registry.register_schema("versions-value", schema())
    second = registry.register_schema("versions-value", schema(column(2, "z")))
    assert first != second
    assert registry.register_schema("versions-value", schema()) == first
    assert json.loads(registry.fetch_schema(second)) == json.loads(schema(column(2, "z")))


NOT_NULL = t.FLAG_NOT_NULL
PASSES = {
    "nullable": [column(2, "z")],
    "nullable with a default": [column(2, "z", default="3")],
    "NOT NULL with a default": [column(2, "z", flag=NOT_NULL, default="3")],
    "text with the default null": [column(2, "z", t.VARCHAR, default="null")],
}


# reference/data-migration-and-ticdc.md 2.5, U-28
@pytest.mark.parametrize("name", PASSES)
def test_backward_policy_accepts_a_column_that_old_rows_can_have(registry: SchemaRegistry, name: str) -> None:
    subject = f"passes-{name.replace(' ', '_')}-value"
    registry.register_schema(subject, schema())
    registry.register_schema(subject, schema(*PASSES[name]))
    # The column may also be removed again.
    registry.register_schema(subject, schema())


# S2-38, S2-39
def test_backward_policy_refuses_a_not_null_column_until_changed(
    schema_registry: Apicurio, registry: SchemaRegistry
) -> None:
    registry.register_schema("refused-value", schema())
    added = schema(column(2, "z", flag=NOT_NULL))
    with pytest.raises(SchemaRefused, match="refused-value"):
        registry.register_schema("refused-value", added)
    schema_registry.set_compatibility("NONE")
    assert registry.register_schema("refused-value", added) > 0


def test_backward_policy_refuses_a_changed_key(registry: SchemaRegistry) -> None:
    def key(kind: int) -> str:
        table = table_def(table_info(1, "t", [column(1, "id", kind, flag=INT_PK)], pk_is_handle=True))
        return build_key_schema(table, AvroOptions())

    registry.register_schema("key-key", key(t.LONGLONG))
    with pytest.raises(SchemaRefused):
        registry.register_schema("key-key", key(t.VARCHAR))
