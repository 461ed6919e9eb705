"""Topics of tables: TiCDC's dispatchers and table filter, one topic per table (MISSION S2-05, S2-41 to S2-43)."""

from __future__ import annotations

import pytest

from binlake.errors import ConfigError
from binlake.rules.tables import TableMatcher
from binlake.rules.topics import Dispatcher, Topics, format_subject, format_topic_name


# S2-05
def test_first_matching_dispatcher_decides() -> None:
    topics = Topics([Dispatcher(("test.*",), "tidb_{schema}_{table}"), Dispatcher(("*.*",), "rest-{schema}.{table}")])
    assert topics.find_topic("test", "t1") == "tidb_test_t1"
    assert topics.find_topic("other", "t1") == "rest-other.t1"
    with pytest.raises(ConfigError, match=r"other\.t1"):
        Topics([Dispatcher(("test.*",), "tidb_{schema}_{table}")]).find_topic("other", "t1")


# S2-43, X-15
@pytest.mark.parametrize(
    "topic", ["tidb_{schema}", "tidb_{table}", "fixed", "{sch}_{tab}", "{table}{schema}", "a b{schema}{table}"]
)
def test_a_topic_without_both_placeholders_is_refused(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"\{schema\}"):
        Topics([Dispatcher(("*.*",), topic)])


# S2-43
def test_legal_text_around_placeholders_is_accepted() -> None:
    assert Topics([Dispatcher(("*.*",), "x_{schema}_y_{table}_z")]).find_topic("a", "b") == "x_a_y_b_z"


# reference/data-migration-and-ticdc.md 6.12
def test_illegal_characters_of_names_are_replaced() -> None:
    assert format_topic_name("{schema}_{table}", "()_+.{}", "world") == "____.___world"
    assert format_topic_name("abc{schema}def{table}", "你好", "") == "abc__def"
    assert format_topic_name("{schema}{table}", ".", "") == "_"
    assert format_topic_name("{schema}{table}", ".", ".") == "__"
    assert len(format_topic_name("{schema}{table}", "a" * 200, "b" * 200)) == 249


# S2-42
def test_two_tables_with_one_topic_are_refused_by_name() -> None:
    topics = Topics([Dispatcher(("*.*",), "{schema}_{table}")])
    topics.require_own_topics([("a", "b"), ("a", "c"), ("a", "b")])
    with pytest.raises(ConfigError, match=r"a_b_c.*a\.b_c, a_b\.c"):
        topics.require_own_topics([("a", "b_c"), ("a_b", "c")])


# S2-41
def test_subjects_follow_the_topic() -> None:
    assert format_subject("tidb_test_t1", "key") == "tidb_test_t1-key"
    assert format_subject("a.b", "value") == "a_b-value"


def test_an_unknown_partition_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="index-value"):
        Topics([Dispatcher(("*.*",), "{schema}{table}", "random")])


@pytest.mark.parametrize(
    ("patterns", "chosen", "left_out"),
    [
        (["*.*"], [("a", "b")], []),
        (["*.*", "!test.*"], [("a", "b")], [("test", "t"), ("TEST", "t")]),
        (["!test.*", "*.*"], [("test", "t")], []),
        (["test.t?"], [("Test", "T1")], [("test", "t12"), ("test", "t")]),
        (["test.t[0-3]"], [("test", "t2")], [("test", "t4")]),
        (["test.t[!0-3]"], [("test", "t4")], [("test", "t2")]),
        (["/^db_[0-9]+$/.orders"], [("db_12", "orders")], [("db_x", "orders"), ("xdb_1", "orders")]),
        (["`my.db`.`a``b`"], [("my.db", "a`b")], [("my", "db")]),
        (['"my.db".*'], [("my.db", "x")], []),
        ([], [], [("a", "b")]),
    ],
)
def test_last_matching_pattern_decides(
    patterns: list[str], chosen: list[tuple[str, str]], left_out: list[tuple[str, str]]
) -> None:
    matcher = TableMatcher(patterns)
    assert [name for name in chosen if not matcher.matches(*name)] == []
    assert [name for name in left_out if matcher.matches(*name)] == []


@pytest.mark.parametrize("pattern", ["test", "test.", ".t", "a.b.c", "/[/.t", "!"])
def test_invalid_table_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ConfigError):
        TableMatcher([pattern])


def test_tables_may_share_a_topic_if_allowed() -> None:
    rules = [Dispatcher(("a.*",), "{table}"), Dispatcher(("b.*",), "plain")]
    topics = Topics(rules, default="rest", shared=True)
    assert [topics.find_topic(db, "t") for db in ("a", "b", "c")] == ["t", "plain", "rest"]
    topics.require_own_topics([("b", "t1"), ("b", "t2")])
    with pytest.raises(ConfigError, match="may contain only"):
        Topics([Dispatcher(("*.*",), "a b")], shared=True)
    with pytest.raises(ConfigError, match="must contain"):
        Topics([Dispatcher(("*.*",), "plain")])
