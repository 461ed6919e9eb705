"""Patterns mean what they mean in the original (TiDB's table filter, Go's regexp, DM's lists), or are refused."""

from __future__ import annotations

import pytest

from binlake.common.sections import BlockAllowList, FilterSection
from binlake.errors import ConfigError
from binlake.rules.patterns import compile_drainer_pattern, compile_wildcard
from binlake.rules.tables import BlockAllow, TableFilter, TableMatcher

# regular expression in Go's syntax, names that it matches, names that it does not
GO = [
    ("^db[[:digit:]]+$", ["db1", "DB12"], ["db", "dbx", "db:]", "dbt]"]),
    ("^[[:alpha:]_]+[[:^digit:]]?$", None, None),
    ("^[^[:space:]]$", ["a", "["], [" ", "\t"]),
    ("^[[:word:]-]+$", ["a-b_1"], ["a.b", "ä"]),
    ("^[[:upper:][:digit:]]$", ["a", "A", "7"], ["_", "["]),
    (r"^\d+$", ["12"], ["\u0661"]),
    (r"^\w+$", ["a_1"], ["ü"]),
    (r"^[\d_]+$", ["1_2"], ["a", "\u0661"]),
    (r"^[\D]$", None, None),
    (r"^\Qa.b\E$", ["a.b"], ["axb"]),
    (r"^\Q[[:digit:]]", ["[[:digit:]]x"], ["1"]),
    (r"^\x{62}\x41$", ["ba"], ["x"]),
    (r"^a\z", ["a"], ["ab"]),
    (r"\bb\b", ["a b"], ["ab", "b_"]),
    ("(?i)ab", ["xAB"], ["a"]),
    ("^(?P<n>a|b)$", ["a"], ["c"]),
    ("^a{,2}$", ["a{,2}"], ["aa", ""]),
    ("^[]a]$", ["]", "a"], ["[a]"]),
    ("^[^]a]$", ["b"], ["]", "a"]),
    ("^[a[b]$", ["[", "a"], ["x"]),
    (r"^shop_(?:\d{2})$", ["shop_07"], ["shop_7"]),
    (r"^\pL$", None, None),
    ("^[[:nodigit:]]$", None, None),
    ("^[a", None, None),
    (r"^\x{FFFFFF}$", None, None),
    ("(?U)a+", None, None),
]


@pytest.mark.parametrize(("regex", "matched", "others"), GO, ids=[case[0] for case in GO])
@pytest.mark.parametrize("where", ["drainer", "dm", "feed"])
def test_regular_expression_is_gos(regex: str, matched: list[str] | None, others: list[str] | None, where: str) -> None:
    def matches(name: str) -> bool:
        if where == "feed":
            return TableMatcher([f"/{regex}/.*"]).matches(name, "t")
        compiled = compile_drainer_pattern if where == "drainer" else compile_wildcard
        return compiled(f"~{regex}").matches(name)

    if matched is None or others is None:
        with pytest.raises(ConfigError):
            matches("a")
        return
    assert [name for name in matched if not matches(name)] == []
    assert [name for name in others if matches(name)] == []


# pattern of TiDB's table filter, tables that it matches, tables that it does not
FILTERS = [
    (r"test.order\_items", ["test.order_items", "TEST.ORDER_ITEMS"], ["test.order\\_items", "test.orderXitems"]),
    (r"test.tmp\_*", ["test.tmp_1", "test.tmp_"], ["test.tmp1"]),
    (r"my\-db.t\.x", ["my-db.t.x"], ["my-db.tx"]),
    (r"test.\*", ["test.*"], ["test.a"]),
    (r"test.\\", ["test.\\"], ["test.a"]),
    ("/^db[[:digit:]]+$/./^t[[:alnum:]]$/", ["db1.tA"], ["db.t1", "db1.t_"]),
    (r"/^a\/b$/.*", ["a/b.x"], ["ab.x"]),
    ("/^db/.t", ["db1.t"], ["xdb.t"]),
    ("test.t[0-9]", ["test.t1"], ["test.tx", "test.t[0-9]"]),
    ("test.t[!0-9]", ["test.tx"], ["test.t1"]),
    ("test.t[^0]", ["test.t^", "test.t0"], ["test.t1"]),
    (r"test.t[\]a]", ["test.t]", "test.ta"], ["test.tb"]),
    ('`my db`."a""b"', ['my db.a"b'], ["my db.ab"]),
    ("täst.$t", ["TÄST.$T"], ["tast.$t"]),
]


@pytest.mark.parametrize(("pattern", "matched", "others"), FILTERS, ids=[case[0] for case in FILTERS])
def test_pattern_of_a_feed_is_tidbs(pattern: str, matched: list[str], others: list[str]) -> None:
    def matches(name: str) -> bool:
        db, _, table = name.partition(".")
        return TableMatcher([pattern]).matches(db, table)

    assert [name for name in matched if not matches(name)] == []
    assert [name for name in others if matches(name)] == []
    assert not TableMatcher(["*.*", f"!{pattern}"]).matches(*matched[0].split(".", 1))


@pytest.mark.parametrize(
    "pattern",
    [
        "@rules.txt", "@dir/a.b", r"test.a\b", "test.a\\", "~^db[[:digit:]]+$", "~^db.t", "test.[[:digit:]]", "my-db.t",
        "a b.c", "test.t[", "test.t[]", "test.t]", "test.t[9-0]", "``.t", "test", "a.b.c", "//.t", "!", "test. t",
    ],
)  # fmt: skip
def test_what_tidb_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"pattern=|filter="):
        TableMatcher([pattern])


def test_comments_and_empty_lines_are_no_patterns() -> None:
    matcher = TableMatcher(["# a.b", "", "test.*", " !test.log "])
    assert matcher.matches("test", "a")
    assert not matcher.matches("test", "log")
    assert not matcher.matches("# a", "b")


def test_lists_of_drainer_and_dm_read_gos_classes() -> None:
    drainer = TableFilter(FilterSection.model_validate({"replicate-do-db": ["~^db[[:digit:]]+$"]}))
    dm = BlockAllow(BlockAllowList.model_validate({"do-dbs": ["~^db[[:digit:]]+$"]}))
    for choice in (drainer, dm):
        assert choice.keeps("db7", "t")
        assert not choice.keeps("dbx", "t")
    with pytest.raises(ConfigError, match=r"\[0-9\]"):
        BlockAllow(BlockAllowList.model_validate({"do-dbs": ["db[[:digit:]]"]}))
