"""Upstream's daily tests on DDL (tidb-binlog 7.2, cases 11, 12, 15, 17)."""

from __future__ import annotations

import pytest
from daily import DB, Daily

from binlake.dialect import DdlText, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.schema import Action
from binlake.rows.schema.state import DdlSide

pytestmark = pytest.mark.mariadb


def test_case_11_alter_database_charset(daily: Daily) -> None:  # tidb-binlog 5.4, #764
    daily.create("t", "id INT PRIMARY KEY, v VARCHAR(9)")
    daily.alter_database("CHARACTER SET utf8 COLLATE utf8_unicode_ci", "utf8", "utf8_unicode_ci")
    daily.begin().insert("t", id=1, v="中").commit()
    daily.check()
    shown = "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
    assert daily.session.fetch_rows(shown, (DB,)) == [("utf8mb3_unicode_ci",)]


def test_case_12_add_unique_index_that_fails_upstream(daily: Daily) -> None:  # tidb-binlog 1.14 point 8
    daily.create("t", "id INT PRIMARY KEY, v INT")
    daily.begin().insert("t", id=1, v=5).insert("t", id=2, v=5).commit()
    query = "ALTER TABLE `t` ADD UNIQUE INDEX `u`(`v`)"
    daily.run(Action.ADD_INDEX, query, "t", daily.table("t"), state=3)
    daily.begin().insert("t", id=3, v=5).commit()
    daily.check()
    assert daily.session.fetch_rows(f"SHOW INDEX FROM {DB}.t WHERE Key_name = 'u'") == []
    assert daily.replay.applied.ddls == 2


def test_case_15_drop_recover_insert(daily: Daily) -> None:
    """A target other than TiDB cannot undrop: the window stops with remedies; the schema continues with the table."""
    daily.create("t", "id INT PRIMARY KEY, v INT")
    daily.begin().insert("t", id=1, v=1).commit()
    daily.check()
    table = daily.table("t")
    daily.drop("t")
    daily.check()
    recovered = daily.run(Action.RECOVER_TABLE, "RECOVER TABLE `t`", "t", table)
    with pytest.raises(TargetRefused, match=rf"commit_ts={recovered} .*RECOVER TABLE.*ignore-txn-commit-ts"):
        daily.advance()
    after = DdlSide((), (table,))
    text = DdlText(recovered, DB, "t", "RECOVER TABLE `t`;", DdlSide((), ()), after)
    assert map_ddl(text, "tidb").sql == (f"USE `{DB}`", "RECOVER TABLE `t`")


def test_case_17_view(daily: Daily) -> None:
    daily.create("t", "id INT PRIMARY KEY, v INT")
    view = {**daily.table("t").raw, "id": 900, "name": {"O": "w", "L": "w"}, "view": {"view_checkoption": 0}}
    text = "CREATE ALGORITHM = UNDEFINED DEFINER = `nobody`@`%` SQL SECURITY DEFINER VIEW `w` (`id`, `v`) AS SELECT * FROM `t`"  # noqa: E501
    definition = type(daily.table("t")).from_json(view, daily.replay._schema.find_database("x") or daily._db)
    daily.run(Action.CREATE_VIEW, text, "w", definition)
    for n in range(10):
        daily.begin().insert("t", id=n, v=n * n).commit()
    daily.check()
    assert daily.session.fetch_rows(f"SELECT SUM(v) FROM {DB}.w")[0][0] == 285
    daily.begin().update("t", {"id": "9", "v": "81"}, v=0).delete("t", id="8", v="64").commit()
    daily.check()
    assert daily.session.fetch_rows(f"SELECT SUM(v), COUNT(*) FROM {DB}.w") == [(140, 9)]
    daily.run(Action.DROP_VIEW, "DROP VIEW `w`", "w", definition)
    daily.check()
