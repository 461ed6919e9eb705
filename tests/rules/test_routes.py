"""Routes: precedence, ambiguity, and the columns that distinguish merged tables."""

from __future__ import annotations

from typing import Any

import pytest

from binlake.common.sections import RouteRule
from binlake.errors import ConfigError
from binlake.rules.routes import Routes


def routes(*rules: dict[str, Any], source: str = "") -> Routes:
    return Routes([RouteRule.model_validate(rule) for rule in rules], source)


def test_table_rule_has_priority_over_database_rule() -> None:  # S4-05
    found = routes(
        {"schema-pattern": "s*", "target-schema": "all"},
        {"schema-pattern": "s1", "table-pattern": "t?", "target-schema": "xs1", "target-table": "t"},
    )
    assert found.map_table("s1", "t1") == ("xs1", "t")
    assert found.map_table("S1", "T2") == ("xs1", "t")
    assert found.map_table("s1", "other") == ("all", "other")
    assert found.map_table("s2", "t1") == ("all", "t1")
    assert found.map_table("x", "t1") == ("x", "t1")
    assert found.map_database("s1") == "all"
    assert found.map_database("x") == "x"


def test_ranges_and_regular_expressions() -> None:
    found = routes(
        {"schema-pattern": "s[0-3]", "target-schema": "low"},
        {"schema-pattern": "s[!0-3]", "target-schema": "high"},
        {"schema-pattern": "~^r[0-9]+$", "table-pattern": "~^t_", "target-schema": "re"},
        {"schema-pattern": "p.q", "target-schema": "dot"},
    )
    assert [found.map_database(name) for name in ("s2", "s7", "s", "pxq", "p.q")] == ["low", "high", "s", "pxq", "dot"]
    assert found.map_table("R12", "t_9") == ("re", "t_9")
    assert found.map_table("r12", "u") == ("r12", "u")


def test_two_rules_of_equal_rank_are_refused_by_name() -> None:  # S4-05
    found = routes(
        {"schema-pattern": "s*", "table-pattern": "t*", "target-schema": "a"},
        {"schema-pattern": "s1", "table-pattern": "t1", "target-schema": "b"},
    )
    assert found.map_table("s2", "t1") == ("a", "t1")
    with pytest.raises(ConfigError, match=r"equal rank.*s1\.t1.*s\*/t\*, s1/t1"):
        found.map_table("s1", "t1")
    with pytest.raises(ConfigError, match="same patterns"):
        routes({"schema-pattern": "S", "target-schema": "a"}, {"schema-pattern": "s", "target-schema": "b"})


def test_extracted_columns_have_the_original_order() -> None:
    rule = {
        "schema-pattern": "shard_*", "table-pattern": "*", "target-schema": "all", "target-table": "t",
        "extract-table": {"table-regexp": "t_(.*)_(.*)", "target-column": "c_table"},
        "extract-schema": {"schema-regexp": "shard_(.*)", "target-column": "c_schema"},
        "extract-source": {"source-regexp": "(.*)", "target-column": "c_source"},
    }  # fmt: skip
    found = routes(rule, source="orders")
    values = [(e.column, e.value) for e in found.extract_columns("shard_01", "t_a_b")]
    assert values == [("c_table", "ab"), ("c_schema", "01"), ("c_source", "orders")]
    assert found.extract_columns("shard_01", "other")[0].value == ""
    assert found.extract_columns("x", "t") == ()
    with pytest.raises(ConfigError, match="not a regular expression"):
        routes({**rule, "extract-table": {"table-regexp": "(", "target-column": "c"}})


def test_error_names_the_first_two_rules_of_equal_rank() -> None:
    patterns = ("a*", "ab*", "abc")
    found = routes(*({"schema-pattern": pattern, "target-schema": "x"} for pattern in patterns))
    with pytest.raises(ConfigError, match=r"routes=a\*/, ab\*/"):
        found.map_database("abc")


def test_routes_are_truthy_if_there_is_a_rule() -> None:
    assert bool(routes({"schema-pattern": "s", "target-schema": "a"})) is True
    assert bool(routes()) is False


def test_extracted_source_is_the_feeders_or_the_replication() -> None:  # S4-03
    rule = {"schema-pattern": "s*", "target-schema": "all",
            "extract-source": {"source-regexp": "^(.*)-[0-9]$", "target-column": "c_source"}}  # fmt: skip
    found = routes(rule, source="replica-7")
    assert [e.value for e in found.extract_columns("s1", "t", "shard-2")] == ["shard"]
    assert [e.value for e in found.extract_columns("s1", "t")] == ["replica"]
    assert [e.value for e in found.extract_columns("s1", "t", "other")] == [""]


def test_rule_with_a_group_applies_only_without_other_rules() -> None:  # S4-05
    found = routes(
        {"schema-pattern": "~^(?:a|b)_(.*)$", "target-schema": "{1}"},
        {"schema-pattern": "a_x", "target-schema": "x_of_a"},
        {"schema-pattern": "b_*", "table-pattern": "t", "target-schema": "b", "target-table": "u"},
    )
    assert [found.map_database(name) for name in ("a_x", "b_x", "A_Y", "c_x", "ab")] == [
        "x_of_a",
        "x",
        "Y",
        "c_x",
        "ab",
    ]
    assert found.map_table("b_x", "t") == ("b", "u")
    assert found.map_table("b_x", "v") == ("x", "v")
    for pattern in ("a_*", "~^a_", "~^(a)_(b)"):
        with pytest.raises(ConfigError, match="one group"):
            routes({"schema-pattern": pattern, "target-schema": "x{1}"})
