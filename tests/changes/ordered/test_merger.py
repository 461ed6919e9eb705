"""Merging neighbours: DM's statements and groups (data-migration 6.6, 6.7), and changes that Binlake does not merge."""

from __future__ import annotations

import pytest
from support.tabledefs import col, key, primary, table

from binlake.changes.net import RowEvent
from binlake.changes.ordered import ChangeKeys, Merger, OrderedChange
from binlake.changes.ordered.forms import RowForms
from binlake.common.sql import Dialect
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.statements import BatchLimits

Values = tuple[int | str | None, ...]


class Table:
    """A table with short notation for its changes."""

    def __init__(self, definition: TableDef, dialect: Dialect = "mariadb") -> None:
        self.definition = definition
        self.forms = RowForms(definition, dialect)
        self.keys = ChangeKeys(definition, dialect)

    def change(self, before: Values | None, after: Values | None, *, safe: bool = False) -> OrderedChange:
        op = "insert" if before is None else "delete" if after is None else "update"
        event = RowEvent(1, 0, 0, op, self._image(before), self._image(after))
        return OrderedChange(self.forms, event, self.keys.list_keys(event), safe)

    def _image(self, values: Values | None) -> dict[str, str | None] | None:
        if values is None:
            return None
        texts = (None if value is None else str(value) for value in values)
        return dict(zip((c.name for c in self.definition.columns), texts, strict=True))


def merged(*changes: OrderedChange, most: int = 1 << 20) -> list[str]:
    return [s.sql for s in Merger(True, BatchLimits(bytes=most)).render_statements(changes)]


def tb(dialect: Dialect = "mariadb") -> Table:
    return Table(table("tb", col("a"), col("b"), keys=(primary("a"),), db="db"), dialect)


def test_inserts_become_one() -> None:
    # S4-18
    t = tb()
    pair = [t.change(None, (1, 1)), t.change(None, (2, 2))]
    assert merged(*pair) == ["INSERT INTO `db`.`tb` (`a`,`b`) VALUES (1,1),(2,2)"]
    safe = [t.change(None, (1, 1), safe=True), t.change(None, (2, 2), safe=True)]
    assert merged(*safe) == ["REPLACE INTO `db`.`tb` (`a`,`b`) VALUES (1,1),(2,2)"]


def test_updates_that_keep_all_keys_become_one_upsert() -> None:
    # S4-19: never a DELETE
    t = tb()
    found = merged(t.change((1, 0), (1, 1)), t.change((2, 0), (2, 2)))
    assert found == [
        "INSERT INTO `db`.`tb` (`a`,`b`) VALUES (1,1),(2,2) ON DUPLICATE KEY UPDATE `a`=VALUES(`a`),`b`=VALUES(`b`)"
    ]


def test_deletes_become_one() -> None:
    # S4-20
    t = tb()
    assert merged(t.change((1, 0), None), t.change((2, 0), None)) == [
        "DELETE FROM `db`.`tb` WHERE (`a` = 1) OR (`a` = 2)"
    ]
    pair = Table(table("p", col("a"), col("b"), keys=(primary("a", "b"),)))
    assert merged(pair.change((1, 2), None), pair.change((3, 4), None)) == [
        "DELETE FROM `d`.`p` WHERE (`a` = 1 AND `b` = 2) OR (`a` = 3 AND `b` = 4)"
    ]


def test_rows_without_a_key_are_deleted_one_by_one() -> None:
    # S4-20: LIMIT 1 stays, so that equal rows are deleted one by one
    t = Table(table("log", col("line")))
    found = merged(t.change((7,), None), t.change((7,), None), t.change(None, (8,)), t.change(None, (8,)))
    assert found == [
        *["DELETE FROM `d`.`log` WHERE `line` <=> 7 LIMIT 1"] * 2,
        "INSERT INTO `d`.`log` (`line`) VALUES (8),(8)",
    ]


def test_key_updates_become_a_case_only_on_tidb() -> None:
    # data-migration 6.6; MySQL would use the already changed value of a column
    def c3(dialect: Dialect) -> Table:
        return Table(table("tb", col("c"), col("c2"), col("c3"), keys=(primary("c"),), db="db"), dialect)

    rows = [((1, 2, 3), (10, 20, 30)), ((4, 5, 6), (40, 50, 60))]
    found = merged(*(c3("tidb").change(*images) for images in rows[:1]))
    assert found == ["UPDATE `db`.`tb` SET `c` = 10, `c2` = 20, `c3` = 30 WHERE `c` = 1 LIMIT 1"]
    t = c3("tidb")
    assert merged(*(t.change(*images) for images in rows)) == [
        "UPDATE `db`.`tb` SET `c`=CASE WHEN `c` = 1 THEN 10 WHEN `c` = 4 THEN 40 END, "
        "`c2`=CASE WHEN `c` = 1 THEN 20 WHEN `c` = 4 THEN 50 END, "
        "`c3`=CASE WHEN `c` = 1 THEN 30 WHEN `c` = 4 THEN 60 END WHERE (`c` = 1) OR (`c` = 4)"
    ]
    m = c3("mysql")
    assert [text.split()[1:4] for text in merged(*(m.change(*images) for images in rows))] == [
        ["`db`.`tb`", "SET", "`c`"]
    ] * 2


def test_case_never_has_two_rows_that_share_a_key() -> None:
    # 1 -> 2 -> 3: as one statement the row would end as 2
    t = tb("tidb")
    chain = [t.change((1, 0), (2, 0)), t.change((2, 0), (3, 0)), t.change((8, 0), (9, 0))]
    found = merged(*chain)
    assert [text.count("WHEN") for text in found] == [0, 4]


def shards() -> tuple[Table, Table, Table]:
    """tb1 with a second unique key, and two shapes of tb2."""
    unique = (primary("id"), key("col1", "col1"))
    tb1 = table("tb1", col("id"), col("col1", not_null=True), col("name"), keys=unique)
    first = table("tb2", col("id"), col("col1", not_null=True), col("col2"), keys=unique)
    second = table("tb2", col("id"), col("col1", not_null=True), col("col3"), keys=unique)
    return Table(tb1), Table(first), Table(second)


def kinds(*changes: OrderedChange) -> list[tuple[str, int]]:
    """(first word, number of rows or conditions) of each statement."""
    return [(sql.split()[0], max(1, sql.split("ON DUPLICATE")[0].count("),(") + 1, sql.count(") OR (") + 1))
            for sql in merged(*changes)]  # fmt: skip


def test_groups_match_dm() -> None:
    # data-migration 6.7, in the order of its table
    tb1, col2, col3 = shards()
    assert kinds(*(tb1.change(None, (n, n, n), safe=True) for n in (1, 2, 3))) == [("REPLACE", 3)]
    kept = [tb1.change((n, n, n), (n, n, 9), safe=True) for n in (1, 2, 3)]
    assert kinds(*kept) == [("REPLACE", 1)] * 3
    for moved in [((n, n, n), (n, n + 5, n)) for n in (1, 2, 3)], [((n, n, n), (n + 5, n, n)) for n in (1, 2, 3)]:
        found = merged(*(tb1.change(*images, safe=True) for images in moved))
        assert [sql.split()[0] for sql in found] == ["DELETE", "REPLACE"] * 3
        assert found[0] == "DELETE FROM `d`.`tb1` WHERE `id` = 1 LIMIT 1"
    assert kinds(*(tb1.change((n, n, n), None, safe=True) for n in (4, 5, 6))) == [("DELETE", 3)]
    assert kinds(col2.change(None, (1, 1, 1), safe=True)) == [("REPLACE", 1)]
    assert kinds(col2.change(None, (2, 2, 2)), col3.change(None, (3, 3, 3))) == [("INSERT", 1), ("INSERT", 1)]
    upserts = [col2.change((n, n, n), (n, n, 9)) for n in (1, 2)] + [col3.change((3, 3, 3), (3, 3, 9))]
    found = merged(*upserts)
    assert [sql.count("VALUES (") for sql in found] == [1, 1]
    assert all("ON DUPLICATE KEY UPDATE" in sql for sql in found)
    assert "(1,1,9),(2,2,9)" in found[0]
    deletes = [*(col2.change((n, n, n), None) for n in (4, 5, 6)), *(tb1.change((n, n, n), None) for n in (44, 55))]
    assert kinds(*deletes) == [("DELETE", 3), ("DELETE", 2)]


def test_update_of_a_second_unique_key_is_not_merged() -> None:
    # DM upserts here: on rows (1,1), (2,3) an upsert of (1,3) is a duplicate key error (tiflow 3432)
    _, col2, _ = shards()
    found = merged(*(col2.change((n, n, n), (n, n + 5, n)) for n in (1, 2)))
    assert [sql.split()[0] for sql in found] == ["UPDATE", "UPDATE"]


def test_without_multiple_rows_each_change_is_one_statement() -> None:
    # S4-17
    t = tb()
    changes = [t.change(None, (n, n)) for n in range(5)]
    assert len(Merger(False, BatchLimits()).render_statements(changes)) == 5


def test_statements_are_bounded_by_bytes() -> None:
    # hazards R-30: never above the server's packet
    t = tb()
    found = merged(*(t.change(None, (n, n)) for n in range(100)), most=500)
    assert len(found) > 5
    assert max(map(len, found)) < 600
    with pytest.raises(Permanent, match="packets of 1100 bytes"):
        Merger(True, BatchLimits(packet=1100)).render_statements([t.change(None, (1, 10**90))])
