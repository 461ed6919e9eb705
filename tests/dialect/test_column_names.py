"""The column names that an ALTER TABLE changes, adds and drops."""

from __future__ import annotations

import pytest

from binlake.dialect.classify import (
    find_added_columns,
    find_alter_clauses,
    find_changed_columns,
    find_dropped_columns,
    find_renamed_columns,
)
from binlake.dialect.tokens import tokenize


@pytest.mark.parametrize(
    ("text", "changed", "renamed", "dropped", "added"),
    [
        ("CHANGE `A` B INT, CHANGE COLUMN IF EXISTS c C BIGINT", {"b": "a", "c": "c"}, {"b": "a"}, "", ""),
        ("RENAME COLUMN a TO b, RENAME INDEX i TO k, RENAME TO t2", {}, {"b": "a"}, "", ""),
        ("DROP a, DROP COLUMN IF EXISTS b, DROP INDEX i, DROP PRIMARY KEY, DROP PARTITION p", {}, {}, "ab", ""),
        ("ADD a INT, ADD COLUMN IF NOT EXISTS b INT /* c */, ADD INDEX i (a), ADD PARTITION (p)", {}, {}, "", "ab"),
        ("DROP `index`, ADD `check` INT", {}, {}, ["index"], ["check"]),
        ("DROP a, ADD (a INT, KEY k (b), `B` DECIMAL(9,2) DEFAULT (1 + 1)), ADD c INT", {}, {}, "a", "abc"),
        ("ADD COLUMN IF NOT EXISTS (a INT, UNIQUE (a), b INT)", {}, {}, "", "ab"),
        ("MODIFY a BIGINT, COMMENT = 'CHANGE a b'", {}, {}, "", ""),
    ],
)  # fmt: skip
def test_column_names_in_alter_clauses(
    text: str, changed: dict[str, str], renamed: dict[str, str], dropped: str, added: str
) -> None:
    clauses = find_alter_clauses(tokenize(f"ALTER TABLE /*T! x */ d.t {text}"))
    assert find_changed_columns(clauses) == changed
    assert find_renamed_columns(clauses) == renamed
    assert find_dropped_columns(clauses) == set(dropped)
    assert find_added_columns(clauses) == set(added)


def test_other_statements_have_no_clauses() -> None:
    assert find_alter_clauses(tokenize("CREATE TABLE t (a INT COMMENT 'CHANGE a b')")) == []
    assert find_alter_clauses(tokenize("DROP TABLE a, b")) == []
