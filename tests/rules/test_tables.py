"""Table filter: the drainer's lists and their order."""

from __future__ import annotations

import pytest

from binlake.common.sections import FilterSection
from binlake.errors import ConfigError
from binlake.rules import TableFilter


def rule(**lists: object) -> TableFilter:
    return TableFilter(FilterSection.model_validate({key.replace("_", "-"): value for key, value in lists.items()}))


def test_system_schemas_are_left_out_by_default_in_any_case() -> None:
    keeps = TableFilter(FilterSection()).keeps  # type: ignore[call-arg]
    assert keeps("bank", "acct_00")
    assert not keeps("mysql", "user")
    assert not keeps("information_schema", "tables")


def test_do_lists_select_by_database_or_table() -> None:
    keeps = rule(replicate_do_db=["a"], replicate_do_table=[{"db-name": "b", "tbl-name": "t1"}]).keeps
    assert keeps("a", "x")
    assert keeps("b", "t1")
    assert not keeps("b", "t2")
    assert not keeps("c", "t1")


def test_ignore_lists_have_priority_over_do_lists() -> None:
    keeps = rule(replicate_do_db=["a"], ignore_table=[{"db-name": "a", "tbl-name": "log"}]).keeps
    assert keeps("a", "x")
    assert not keeps("A", "LOG")


def test_tilde_patterns_search_and_plain_patterns_are_anchored() -> None:
    keeps = rule(ignore_schemas="~^tmp,log.").keeps
    assert not keeps("tmp_1", "t")
    assert not keeps("log1", "t")
    assert keeps("log12", "t")
    assert keeps("xtmp", "t")


def test_invalid_pattern_error_names_it() -> None:
    with pytest.raises(ConfigError, match=r"filter=~\["):
        rule(ignore_schemas="~[")


def test_single_do_list_excludes_everything_else() -> None:
    by_database = rule(replicate_do_db=["a"]).keeps
    assert (by_database("a", "x"), by_database("b", "x")) == (True, False)
    by_table = rule(replicate_do_table=[{"db-name": "b", "tbl-name": "t1"}]).keeps
    assert (by_table("b", "t1"), by_table("b", "t2"), by_table("a", "x")) == (True, False, False)
