"""The SQL of one row change, with DM's cases (data-migration 6.5); values are literals in the text, not parameters."""

from __future__ import annotations

from support.tabledefs import col, key, primary, table

from binlake.changes.ordered.forms import OrderedStatement, RowForms
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

Row = dict[str, str | None]


def forms(definition: TableDef, dialect: str = "mariadb") -> RowForms:
    return RowForms(definition, dialect)  # type: ignore[arg-type]


def row(definition: TableDef, *values: str | None) -> Row:
    return dict(zip((column.name for column in definition.columns), values, strict=True))


KEYED = table("tb2", col("id"), col("name"), keys=(primary("id"),), db="db")
UNIQUE = table("tb2", col("c"), col("c2"), keys=(key("c2", "c2"),), db="db")
KEYLESS = table("tb2", col("c"), col("c2"), db="db")


def test_row_is_matched_by_its_primary_key() -> None:
    # S0-22, S4-29
    gone = "DELETE FROM `db`.`tb2` WHERE `id` = 1 LIMIT 1"
    assert forms(KEYED).delete(row(KEYED, "1", "2")) == OrderedStatement(gone, 1)
    # A repetition does not find the row.
    assert forms(KEYED).delete(row(KEYED, "1", "2"), safe=True) == OrderedStatement(gone)
    found = forms(KEYED).update(row(KEYED, "1", "2"), row(KEYED, "3", "4"))
    assert found.sql == "UPDATE `db`.`tb2` SET `id` = 3, `name` = 4 WHERE `id` = 1 LIMIT 1"


def test_nullable_unique_key_matches_a_row_if_not_null() -> None:  # S4-29
    assert forms(UNIQUE).delete(row(UNIQUE, "1", "2")).sql == "DELETE FROM `db`.`tb2` WHERE `c2` = 2 LIMIT 1"
    where = "`c` <=> 1 AND `c2` IS NULL"
    assert forms(UNIQUE).delete(row(UNIQUE, "1", None)) == OrderedStatement(
        f"DELETE FROM `db`.`tb2` WHERE {where} LIMIT 1", 1
    )


def test_prefix_key_does_not_match_a_row() -> None:
    definition = table("t", col("a", t.VARCHAR), col("b"), keys=(key("a", ("a", 3)), key("b", "b")))
    assert "`b` = 7" in forms(definition).delete(row(definition, "abcdef", "7")).sql
    assert "`a` <=> 'abcdef'" in forms(definition).delete(row(definition, "abcdef", None)).sql


def test_without_a_key_exactly_one_of_equal_rows_is_deleted() -> None:
    # S4-12, S4-20, S4-29, R-44: LIMIT 1, exact comparison, affected rows counted
    assert forms(KEYLESS).delete(row(KEYLESS, "1", None)) == OrderedStatement(
        "DELETE FROM `db`.`tb2` WHERE `c` <=> 1 AND `c2` IS NULL LIMIT 1", 1
    )
    moved = forms(KEYLESS).update(row(KEYLESS, "1", "2"), row(KEYLESS, "3", "4"))
    assert moved == OrderedStatement(
        "UPDATE `db`.`tb2` SET `c` = 3, `c2` = 4 WHERE `c` <=> 1 AND `c2` <=> 2 LIMIT 1", 1
    )
    assert forms(KEYLESS).delete(row(KEYLESS, "1", None), safe=True).expect == 1


def test_generated_columns_are_not_written() -> None:
    stored = col("c2", t.LONGLONG, generated_expr_string="`c` + 1", generated_stored=True)
    definition = table("tb2", col("c"), stored, keys=(primary("c"),), db="db")
    found = forms(definition).update(row(definition, "1", "2"), row(definition, "3", "4"))
    assert found.sql == "UPDATE `db`.`tb2` SET `c` = 3 WHERE `c` = 1 LIMIT 1"
    assert forms(definition).insert(row(definition, "1", "2")).sql == "INSERT INTO `db`.`tb2` (`c`) VALUES (1)"


def test_inserts() -> None:
    found = forms(KEYED)
    assert found.insert(row(KEYED, "1", "2")) == OrderedStatement(
        "INSERT INTO `db`.`tb2` (`id`,`name`) VALUES (1,2)", 1
    )
    assert found.replace(row(KEYED, "1", "2")) == OrderedStatement("REPLACE INTO `db`.`tb2` (`id`,`name`) VALUES (1,2)")


def test_safe_update_deletes_only_if_a_key_changes() -> None:
    # S4-44, data-migration 1.6: DM since 8.5.6; the article's DELETE + REPLACE always gives the same rows
    pair = table("t", col("a"), col("b"), col("c"), keys=(primary("a"), key("b", "b")))
    found = forms(pair)
    kept = found.update_safely(row(pair, "1", "2", "3"), row(pair, "1", "2", "4"))
    assert [s.sql for s in kept] == ["REPLACE INTO `d`.`t` (`a`,`b`,`c`) VALUES (1,2,4)"]
    for after in (("9", "2", "3"), ("1", "9", "3"), ("1", None, "3")):
        moved = found.update_safely(row(pair, "1", "2", "3"), row(pair, *after))
        assert [s.sql.split()[0] for s in moved] == ["DELETE", "REPLACE"]
        assert moved[0].sql == "DELETE FROM `d`.`t` WHERE `a` = 1 LIMIT 1"
    # Without a key, any change moves the row.
    without = forms(KEYLESS).update_safely(row(KEYLESS, "1", "2"), row(KEYLESS, "1", "3"))
    assert [s.sql.split()[0] for s in without] == ["DELETE", "REPLACE"]


def test_changes_that_move_a_row() -> None:
    # data-migration 6.2, the table with a nullable unique key
    definition = table(
        "t",
        col("id"),
        col("uk1", not_null=True),
        col("uk2"),
        col("v"),
        keys=(primary("id"), key("u1", "uk1"), key("u2", "uk2")),
    )
    found = forms(definition)
    before = row(definition, "1", "10", "100", "7")
    vectors: list[tuple[tuple[str | None, ...], bool]] = [
        (("1", "10", "100", "9"), False),
        (("2", "10", "100", "7"), True),
        (("1", "20", "100", "7"), True),
        (("1", "10", "200", "7"), True),
        (("1", "10", None, "7"), True),
    ]
    assert [found.moves(before, row(definition, *after)) for after, _ in vectors] == [moved for _, moved in vectors]


def test_unique_key_on_a_stored_column_moves_a_row() -> None:
    # data-migration 6.2: stored generated lower(name) with a unique key
    lower = col("low", t.VARCHAR, generated_expr_string="lower(name)", generated_stored=True)
    definition = table("t", col("id"), col("name", t.VARCHAR), lower, keys=(primary("id"), key("u", "low")))
    found = forms(definition)
    alice = row(definition, "1", "Alice", "alice")
    assert not found.moves(alice, row(definition, "1", "ALICE", "alice"))
    assert found.moves(alice, row(definition, "1", "Bob", "bob"))


def test_row_older_than_a_column_has_its_origin_default() -> None:
    # tidb-binlog 5.5
    added = table("t", col("a"), col("b", t.VARCHAR, origin_default="x"))
    assert forms(added).delete({"a": "1"}).sql.endswith("'x' AS BINARY) LIMIT 1")
