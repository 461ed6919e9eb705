"""Values in DDL text that depend on the session: defaults, bounds of partitions, conversions (R-29)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from support.tabledefs import col, primary, table

from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl
from binlake.dialect.givenvalues import reads_clock
from binlake.errors import TargetRefused
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import DbInfo, DdlJob, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.statements.ddlsteps import CastStep, RequireNoRows
from binlake.statements.generation import list_written_columns

NOTHING = SourceSession()
NEW_YORK = SourceSession("America/New_York", "2024-05-06")
EAST = SourceSession("+08:00", "2024-05-06")


def mapped(
    query: str, after: TableDef, before: TableDef | None = None, dialect: Dialect = "mariadb",
    session: SourceSession = NOTHING,
) -> tuple[str, ...]:  # fmt: skip
    sides = DdlSide((), (before,) if before is not None else ()), DdlSide((), (after,), session)
    return map_ddl(DdlText(7, "d", "t", query, *sides), dialect).sql[1:]


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
def test_timestamp_default_is_written_in_utc(dialect: Dialect) -> None:
    #
    stamp = col("ts", t.TIMESTAMP, default="2020-06-01 16:00:00.120000", decimal=2)
    made = mapped("CREATE TABLE `t` (`ts` TIMESTAMP(2) DEFAULT _UTF8MB4'2020-06-01 12:00:00.12')", table("t", stamp),
                  dialect=dialect)  # fmt: skip
    assert "DEFAULT '2020-06-01 16:00:00.12')" in made[-1]
    before = table("t", col("ts", t.TIMESTAMP))
    changed = "ALTER TABLE `t` ALTER COLUMN `ts` SET DEFAULT "
    given = mapped(changed + "_UTF8MB4'2020-06-01 12:00:00.12'", table("t", stamp), before, dialect)
    assert given == (changed + "'2020-06-01 16:00:00.12'",)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
@pytest.mark.parametrize(
    "query",
    [
        "CREATE TABLE `t` (`c` VARCHAR(9) CHARACTER SET latin1 DEFAULT x'f6')",
        "ALTER TABLE `t` ADD COLUMN `c` VARCHAR(9) CHARACTER SET latin1 DEFAULT x'f6'",
        "ALTER TABLE `t` ALTER COLUMN `c` SET DEFAULT x'f6'",
    ],
)
def test_default_that_latin1_cannot_hold_is_refused_with_a_hint(query: str, dialect: Dialect) -> None:
    # Recorded in the capture `zones`: TiDB stores, fills and shows U+FFFD.
    lost = col("c", t.VARCHAR, flen=9, charset="latin1", collate="latin1_bin", default="\ufffd")
    held = col("c", t.VARCHAR, flen=9, default="\ufffd")
    before = table("t", col("a" if "ADD" in query else "c", t.VARCHAR, flen=9))
    with pytest.raises(TargetRefused, match=r"default of column c .* U\+FFFD .* ddl-replacement to make it a utf8mb4"):
        mapped(query, table("t", lost), None if query.startswith("CREATE") else before, dialect)
    wide = mapped(query.replace("latin1", "utf8mb4"), table("t", held), before, dialect)
    assert "DEFAULT '\ufffd'" in wide[-1]


@pytest.mark.parametrize("dialect", ["mariadb", "mysql"])
@pytest.mark.parametrize("charsets", [("latin1", "binary"), ("binary", "latin1")])
def test_conversion_between_latin1_and_bytes_is_made_by_values(charsets: tuple[str, str], dialect: Dialect) -> None:
    # `ö` is C3B6 in TiDB's latin1 column and F6 in the target's: its own ALTER would give other bytes silently.
    old, new = (col("c", t.VARCHAR, flen=9, charset=one, collate=one if one == "binary" else f"{one}_bin")
                for one in charsets)  # fmt: skip
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `c` VARBINARY(9)", table("t", new), table("t", old), dialect)
    assert [CastStep.find_in(text) is not None for text in found].count(True) == 1
    plain = col("c", t.VARCHAR, flen=9), col("c", t.VARCHAR, flen=9, charset="binary", collate="binary")
    own = mapped("ALTER TABLE `t` MODIFY COLUMN `c` VARBINARY(9)", table("t", plain[1]), table("t", plain[0]), dialect)
    assert own == ("ALTER TABLE `t` MODIFY COLUMN `c` VARBINARY(9)",)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
@pytest.mark.parametrize("charset", ["utf8mb4", "ascii"])
def test_texts_read_as_latin1_are_not_converted_to_bytes(charset: str, dialect: Dialect) -> None:
    # TiDB's byte F6 is `ö` at the target, whose bytes are C3B6 there; with source.invalid-text = latin1 this can
    # happen.
    old = col("c", t.VARCHAR, flen=9, charset=charset, collate=f"{charset}_bin")
    new = col("c", t.VARCHAR, flen=9, charset="binary", collate="binary")
    query = "ALTER TABLE `t` MODIFY COLUMN `c` VARBINARY(9)"
    with pytest.raises(TargetRefused, match=r"bytes of c from varchar.*source\.invalid-text"):
        mapped(query, table("t", new), table("t", old), dialect, session=SourceSession(guessed=True))
    assert mapped(query, table("t", new), table("t", old), dialect)
    assert SourceSession.from_dict(SourceSession(guessed=True).to_dict()) == SourceSession(guessed=True)


STORED = [
    (col("c", default="65"), "INT", "x'41'", "65"),
    (col("c", t.SET, elems=("x", "y"), default="x,y"), "SET('x','y')", "3", "'x,y'"),
    (col("c", t.VARCHAR, flen=9, default="100"), "VARCHAR(9)", "1e2", "'100'"),
    (col("c", t.VARCHAR, flen=9, default="A"), "VARCHAR(9)", "0x41", "'A'"),
    (col("c", t.YEAR, default="70"), "YEAR", "70", "1970"),
    (col("c", t.BIT, flen=8, default="\x05", default_bit="BQ=="), "BIT(8)", "b'101'", "0x05"),
    (col("c", t.VARCHAR, flen=4, charset="binary", default="a\ufffd"), "VARBINARY(4)", "x'61ff'", "X'61EFBFBD'"),
    (col("c", t.STRING, flen=3, charset="binary", default="a\0\0"), "BINARY(3)", "'a'", "X'610000'"),
    (col("c", default="1"), "INT", "TRUE", "1"),
    (col("c", default="-3"), "INT", "-3", "-3"),
    (col("c", t.NEWDECIMAL, flen=9, decimal=2, default="1.5"), "DECIMAL(9,2)", "1.5", "1.5"),
    (col("c", t.VARCHAR, flen=9, default="a"), "VARCHAR(9)", "_UTF8MB4'a'", "'a'"),
    (col("c"), "INT", "NULL", "NULL"),
]


@pytest.mark.parametrize(("column", "kind", "text", "said"), STORED)
def test_default_is_the_value_that_the_source_stored(column: dict[str, Any], kind: str, text: str, said: str) -> None:
    column = {**column, "comment": "x"}
    found = mapped(f"ALTER TABLE `t` ADD COLUMN `c` {kind} DEFAULT {text} COMMENT 'x' AFTER `a`", table("t", column))
    assert f"DEFAULT {said} COMMENT 'x' AFTER `a`" in found[-1]


FILLED = [
    (col("c", t.NEWDECIMAL, flen=10, decimal=2, origin_default="1.555"), "1.56"),
    (col("c", t.NEWDECIMAL, flen=5, origin_default="12.5"), "13"),
    (col("c", t.NEWDECIMAL, flen=9, decimal=1, origin_default="1e2"), "100.0"),
    (col("c", t.YEAR, origin_default="70"), "1970"),
    (col("c", t.YEAR, origin_default="0000"), "0000"),
    (col("c", t.STRING, flen=5, origin_default="a  "), "a"),
    (col("c", origin_default="1e2"), "100"),
    (col("c", t.DATETIME, decimal=1, origin_default="2020-01-01 00:00:00.96"), "2020-01-01 00:00:01.0"),
]


@pytest.mark.parametrize(("column", "text"), FILLED)
def test_old_row_has_the_origin_default_of_the_source(column: dict[str, Any], text: str) -> None:
    # 5.5; recorded in the capture `zones`
    assert derive_filled_text(table("t", column).columns[0]) == text


def test_json_not_null_is_filled_with_the_document_null() -> None:
    # MariaDB would fill an empty text, which is not JSON
    before, after = table("t", col("a")), table("t", col("a"), col("j", t.JSON, not_null=True))
    query = "ALTER TABLE `t` ADD COLUMN `j` JSON NOT NULL AFTER `a`"
    assert mapped(query, after, before) == (
        "ALTER TABLE `t` ADD COLUMN `j` JSON NOT NULL DEFAULT 'null' AFTER `a`",
        "ALTER TABLE `t` ALTER COLUMN `j` DROP DEFAULT",
    )


def partitioned(*bounds: tuple[str, str], **more: Any) -> TableDef:
    definitions = [{"id": n, "name": {"O": name, "L": name.lower()}, "less_than": [bound]}
                   for n, (name, bound) in enumerate(bounds, 200)]  # fmt: skip
    return table("t", col("ts", t.TIMESTAMP), partition={"definitions": definitions, **more})


@pytest.mark.parametrize("dialect", ["mariadb", "tidb"])
def test_partition_bounds_are_the_stored_numbers(dialect: Dialect) -> None:
    #
    after = partitioned(("p0", "1577854800"), ("P1", "MAXVALUE"))
    text = "PARTITION `P0` VALUES LESS THAN ({}), PARTITION `P1` VALUES LESS THAN (MAXVALUE))"
    bound = "UNIX_TIMESTAMP(_UTF8MB4'2020-01-01 00:00:00')"
    head = "CREATE TABLE `t` (`ts` TIMESTAMP) PARTITION BY RANGE (UNIX_TIMESTAMP(`ts`)) ("
    assert mapped(head + text.format(bound), after, dialect=dialect)[-1].endswith(text.format("1577854800"))
    head = "ALTER TABLE `t` REORGANIZE PARTITION `p` INTO ("
    found = mapped(head + text.format(bound), after, after, dialect=dialect)
    assert found == (head + text.format("1577854800"),)


def test_bounds_of_columns_partitioning_are_unchanged() -> None:
    after = partitioned(("p0", "'2020-01-01'"), columns=[{"O": "d", "L": "d"}])
    query = "ALTER TABLE `t` ADD PARTITION (PARTITION `p0` VALUES LESS THAN (DATE('2020-01-01')))"
    assert mapped(query, after, after) == (query,)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql"])
def test_exchanged_partition_is_spelled_as_in_its_definition(dialect: Dialect) -> None:
    # Capture zones, table Monat: with another letter case MariaDB raises error 1025.
    table = partitioned(("M`2", "MAXVALUE"))
    found = mapped("ALTER TABLE `t` EXCHANGE PARTITION `m``2` WITH TABLE `x`", table, table, dialect=dialect)
    assert found == ("ALTER TABLE `t` EXCHANGE PARTITION `M``2` WITH TABLE `x`",)
    query = "ALTER TABLE `t` EXCHANGE PARTITION `other` WITH TABLE `x`"
    assert mapped(query, table, table, dialect=dialect) == (query,)


def changed(source: dict[str, Any], target: dict[str, Any]) -> tuple[TableDef, TableDef]:
    former, now = (table("t", col("id"), {**c, "name": {"O": "v", "L": "v"}}) for c in (source, target))
    return former, now


STAMP, CLOCK = col("v", t.TIMESTAMP), col("v", t.DATETIME)


def test_zone_with_one_offset_is_set_in_the_session() -> None:
    before, after = changed(STAMP, CLOCK)
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `v` DATETIME", after, before, session=EAST)
    assert "time_zone = '+08:00'" in found[1]
    assert "TIME_ROUND_FRACTIONAL" in found[1]
    assert found[2] == "ALTER TABLE `t` MODIFY COLUMN `v` DATETIME"
    assert found[3].startswith("SET SESSION timestamp = DEFAULT, sql_mode = ")


def test_zone_with_many_offsets_is_resolved_by_an_expression() -> None:
    # the target may have no time zone tables
    before, after = changed(STAMP, CLOCK)
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `v` DATETIME AFTER `id`", after, before, session=NEW_YORK)
    update = next(text for text in found if text.startswith("UPDATE"))
    assert "WHEN `v` < '2021-03-14 07:00:00' THEN -18000" in update
    assert "WHEN `v` < '2021-11-07 06:00:00' THEN -14400" in update
    assert found[-2].startswith("ALTER TABLE `t` DROP COLUMN `v`, CHANGE `_binlake_cast_2_2` `v` DATETIME AFTER `id`")
    back = mapped("ALTER TABLE `t` MODIFY COLUMN `v` TIMESTAMP", before, after, session=NEW_YORK)
    # Of an hour that occurs twice the first is taken: the old offset applies until 02:00 local time.
    assert "< '2021-11-07 02:00:00' THEN 14400" in next(text for text in back if text.startswith("UPDATE"))


def test_tidb_target_converts_in_the_sources_zone() -> None:
    before, after = changed(STAMP, CLOCK)
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `v` DATETIME", after, before, "tidb", NEW_YORK)
    assert found[1] == "SET SESSION time_zone = 'America/New_York'"


GUESSED = SourceSession("+08:00", "2024-05-06", guessed=True)
TEXT9, BYTES9 = col("v", t.VARCHAR, flen=9), col("v", t.VARCHAR, flen=9, charset="binary", collate="binary")
MYSQL, MARIADB = (SourceSession("+00:00", family=family, sql_mode=1 << 21) for family in ("mysql", "mariadb"))
LENIENT_MYSQL = replace(MYSQL, sql_mode=0)
UNTOLD: list[tuple[dict[str, Any], dict[str, Any], Dialect, SourceSession, str]] = [
    (STAMP, CLOCK, "mariadb", SourceSession(), "source.time-zone"),
    (STAMP, CLOCK, "tidb", SourceSession(), "zone"),
    (col("v", t.DURATION), CLOCK, "mariadb", SourceSession("+08:00"), "day"),
    (col("v", t.JSON), col("v"), "mariadb", EAST, "json"),
    (TEXT9, BYTES9, "mysql", GUESSED, "latin1"),
    # MySQL and MariaDB convert these differently, and neither as TiDB does.
    (col("v"), CLOCK, "mariadb", MYSQL, "mysql and mariadb convert differently"),
    (col("v", t.JSON), TEXT9, "mysql", MARIADB, "mariadb and mysql convert differently"),
    (col("v", t.DATETIME, decimal=3), col("v", t.DATE), "mariadb", MYSQL, "mysql and mariadb convert differently"),
    (TEXT9, col("v"), "mysql", MARIADB, "mariadb and mysql convert differently"),
    (col("v", t.DOUBLE), col("v"), "mariadb", LENIENT_MYSQL, "mysql and mariadb convert differently"),
    (col("v", t.DOUBLE), col("v"), "tidb", MYSQL, "mysql and tidb convert differently"),
]


@pytest.mark.parametrize(("source", "target", "dialect", "session", "why"), UNTOLD)
def test_unknown_conversion_is_refused_with_a_hint(
    source: dict[str, Any], target: dict[str, Any], dialect: Dialect, session: SourceSession, why: str
) -> None:
    # never a silent difference
    before, after = changed(source, target)
    with pytest.raises(TargetRefused, match=why) as refused:
        mapped("ALTER TABLE `t` MODIFY COLUMN `v` ANYTHING", after, before, dialect, session)
    assert "ddl-replacement" in refused.value.hint


JSON = col("v", t.JSON)
BY_VALUES: list[tuple[dict[str, Any], dict[str, Any], Dialect, SourceSession]] = [
    (col("v"), JSON, "mariadb", EAST),
    (TEXT9, JSON, "mariadb", EAST),
    (JSON, TEXT9, "mysql", EAST),
    (col("v"), CLOCK, "mysql", EAST),
    (col("v", t.DOUBLE), col("v"), "mysql", EAST),
    (TEXT9, col("v", t.DURATION), "mysql", EAST),
    (TEXT9, JSON, "mariadb", MYSQL),
    (col("v"), col("v", t.TINY), "mariadb", LENIENT_MYSQL),
]


@pytest.mark.parametrize(("source", "target", "dialect", "session"), BY_VALUES)
def test_conversion_that_the_target_cannot_make_is_made_by_values(
    source: dict[str, Any], target: dict[str, Any], dialect: Dialect, session: SourceSession
) -> None:
    #
    before, after = changed(source, target)
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `v` ANYTHING", after, before, dialect, session)
    (step,) = filter(None, map(CastStep.find_in, found))
    assert (step.source.name, step.target.name, step.shadow, step.table) == ("v", "v", "_binlake_cast_2_2", "`t`")
    assert CastStep.find_in(step.to_sql()) == step
    assert found[-2] == "ALTER TABLE `t` DROP COLUMN `v`, CHANGE `_binlake_cast_2_2` `v` ANYTHING"


SHORT = col("v", t.VARCHAR, flen=3)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
@pytest.mark.parametrize("kinds", [(TEXT9, SHORT), (col("v"), col("v", t.TINY, unsigned=True))])
def test_session_that_was_not_strict_is_not_strict_at_the_target(
    kinds: tuple[dict[str, Any], dict[str, Any]], dialect: Dialect
) -> None:
    # what did not fit was no error at the source
    before, after = changed(*kinds)
    query = "ALTER TABLE `t` MODIFY COLUMN `v` ANYTHING"
    found = mapped(query, after, before, dialect, SourceSession("+00:00", lenient=True))
    assert "sql_mode" in found[1]
    assert "STRICT" not in found[1]
    assert found[2] == query
    assert mapped(query, after, before, dialect, SourceSession("+00:00")) == (query,)


def test_column_that_tidb_writes_again_has_a_new_id_in_a_lenient_session_too() -> None:
    before, after = changed(TEXT9, SHORT)
    columns = [{**column, "id": 10 + column["id"]} for column in after.raw["cols"]]
    again = TableDef.from_json({**after.raw, "cols": columns}, DbInfo(2, "d", "utf8mb4", "utf8mb4_bin", {}))
    query = "ALTER TABLE `t` MODIFY COLUMN `v` VARCHAR(3)"
    found = mapped(query, again, before, "mariadb", SourceSession("+00:00", lenient=True))
    assert "sql_mode" in found[1]


@pytest.mark.parametrize(("mode", "lenient"), [(None, False), (0, True), (1436549152, False), (1 << 22, False)])
def test_job_of_tidb_says_whether_its_session_was_strict(mode: int | None, lenient: bool) -> None:
    meta = {"location": {"name": "UTC", "offset": 0}, **({} if mode is None else {"sql_mode": mode})}
    job = DdlJob.from_dict({"id": 1, "type": 12, "state": 3, "schema_id": 1, "table_id": 1, "reorg_meta": meta})
    session = SourceSession.of(job, 1)
    assert session.is_lenient is lenient
    assert SourceSession.from_dict(session.to_dict()) == session


def test_change_without_conversion_runs_unchanged() -> None:
    before, after = changed(col("v", t.VARCHAR, flen=5), col("v", t.VARCHAR, flen=9))
    query = "ALTER TABLE `t` MODIFY COLUMN `v` VARCHAR(9)"
    assert mapped(query, after, before) == (query,)


@pytest.mark.parametrize("handle", [False, True])
def test_converted_primary_key_is_made_again_in_the_last_statement(handle: bool) -> None:
    # An integer key may have no index of its own in the definition; it must not be lost with its old column.
    keys = () if handle else (primary("v"),)
    number = col("v", not_null=True)
    number["type"]["Flag"] |= t.FLAG_PRIMARY
    before = table("t", {**STAMP, "name": {"O": "v", "L": "v"}}, keys=(primary("v"),))
    after = table("t", number, keys=keys, pk_is_handle=handle)
    found = mapped("ALTER TABLE `t` MODIFY COLUMN `v` INT", after, before, session=NEW_YORK)
    (last,) = [text for text in found if "CHANGE" in text]
    assert last.startswith("ALTER TABLE `t` DROP PRIMARY KEY, DROP COLUMN `v`, CHANGE `_binlake_cast_1_1` `v` INT")
    assert last.endswith("ADD PRIMARY KEY (`v`)")


def test_primary_key_that_the_statement_replaces_is_not_made_twice() -> None:
    before = table("t", {**STAMP, "name": {"O": "v", "L": "v"}}, col("a", not_null=True), keys=(primary("v"),))
    after = table("t", {**CLOCK, "name": {"O": "v", "L": "v"}}, col("a", not_null=True), keys=(primary("a", "v"),))
    query = "ALTER TABLE `t` MODIFY COLUMN `v` DATETIME, DROP PRIMARY KEY, ADD PRIMARY KEY (`a`, `v`)"
    (last,) = [text for text in mapped(query, after, before, session=NEW_YORK) if "CHANGE" in text]
    assert (last.count("DROP PRIMARY KEY"), last.count("ADD PRIMARY KEY")) == (1, 1)


def test_current_date_origin_default_is_fixed_to_one_day() -> None:
    # TiDB stores the keyword CURRENT_DATE as the origin default
    from binlake import tso

    def job(number: int, kind: int, **info: Any) -> DdlJob:
        raw = table("t", col("a"), col("d", t.DATE, **info)).raw
        at = tso.parse(f"2024-05-0{number}T23:59:00")
        binlog = {"SchemaVersion": number, "TableInfo": raw, "FinishedTS": at}
        return DdlJob.from_dict({"id": number, "type": kind, "state": 6, "schema_id": 2, "table_id": 100,
                                 "binlog": binlog})  # fmt: skip

    made = DdlJob.from_dict({"id": 1, "type": 1, "state": 6, "schema_id": 2, "table_id": 0, "binlog": {
        "SchemaVersion": 1, "FinishedTS": 5, "DBInfo": {"id": 2, "db_name": {"O": "d", "L": "d"}}}})  # fmt: skip
    state = SchemaState().apply(made, 5)
    for number in (2, 3):
        state = state.apply(job(number, 5, origin_default="CURRENT_DATE"), number * 10)
        found = state.find("d", "t")
        assert found is not None
        assert derive_filled_text(found.columns[1]) == "2024-05-02"
    assert replace(found.columns[1], origin_default=None) != found.columns[1]


def generated(expression: str, *, stored: bool = True) -> TableDef:
    made = col("g", generated_expr_string=expression, generated_stored=stored)
    return table("t", col("ts", t.TIMESTAMP), col("dt", t.DATETIME), made)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
@pytest.mark.parametrize("expression", ["hour(`ts`)", "unix_timestamp(`dt`)"])
def test_stored_column_that_depends_on_the_zone_gets_the_sources_values(dialect: Dialect, expression: str) -> None:
    # no session of the target has the zone of every writer
    query = f"CREATE TABLE `t` (`ts` TIMESTAMP,`dt` DATETIME,`g` INT GENERATED ALWAYS AS({expression}) STORED NOT NULL)"
    after = generated(expression)
    assert "`g` INT NOT NULL)" in mapped(query, after, dialect=dialect)[-1]
    assert [column.name for column in list_written_columns(after, dialect)] == ["ts", "dt", "g"]


@pytest.mark.parametrize(("expression", "stored"), [("hour(`dt`)", True), ("hour(`ts`)", False)])
def test_other_generated_columns_are_computed_by_the_target(expression: str, stored: bool) -> None:
    query = f"CREATE TABLE `t` (`g` INT GENERATED ALWAYS AS({expression}) {'STORED' if stored else 'VIRTUAL'})"
    after = generated(expression, stored=stored)
    assert expression in mapped(query, after)[-1]
    assert [column.name for column in list_written_columns(after, "mariadb")] == ["ts", "dt"]


ADD = "ALTER TABLE `t` ADD COLUMN `g` INT GENERATED ALWAYS AS({}) STORED NOT NULL COMMENT 'c' UNIQUE KEY FIRST"


@pytest.mark.parametrize(
    ("expression", "family", "dialect"),
    [("`a` + 1", "mysql", "mariadb"), ("`a` + 1", "mariadb", "mysql"), ("hex(`v`)", "mysql", "mysql")],
)
def test_a_new_stored_column_is_computed_once_and_then_plain(expression: str, family: str, dialect: Dialect) -> None:
    # no log has the values of older rows
    base = (col("a"), col("v", t.VARCHAR, flen=9))
    before, after = (
        table("t", *base),
        table("t", *base, col("g", comment="c", generated_expr_string=expression, generated_stored=True)),
    )
    found = mapped(ADD.format(expression), after, before, dialect, SourceSession(family=family, sql_mode=1 << 22))
    assert [text.replace(" ", "") for text in found if text.startswith("ALTER")] == [
        f"ALTERTABLE`t`ADDCOLUMN`g`INTGENERATEDALWAYSAS({expression})STOREDCOMMENT'c'UNIQUEKEYFIRST".replace(" ", ""),
        "ALTERTABLE`t`MODIFYCOLUMN`g`INTNOTNULLCOMMENT'c'",
    ]


def test_values_that_a_source_computed_anew_are_computed_by_a_target_of_its_family() -> None:
    # both columns are generated at once, and plain at once, as an ALTER computes generated ones again
    read = col("h", t.VARCHAR, flen=9, comment="d", generated_expr_string="lower(`a`)", generated_stored=True)
    sides = [table("t", TEXT, PLAIN, read), table("t", SMALL, HEX, read)]
    query = "ALTER TABLE `t` ADD KEY `h` (`g`), MODIFY `g` VARCHAR(40) AS (hex(`a`)) STORED FIRST, MODIFY `a` SMALLINT"
    found = mapped(query, sides[1], sides[0], "mysql", SourceSession(family="mysql", sql_mode=1 << 22))
    of_h = "MODIFY COLUMN `h` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    assert [re.sub(r"\s+(?=[(),])|(?<=[(])\s+", "", text) for text in found if text.startswith("ALTER")] == [
        "ALTER TABLE `t` ADD KEY `h`(`g`), MODIFY `g` VARCHAR(40) GENERATED ALWAYS AS(hex(`a`)) STORED FIRST,"
        f" MODIFY `a` SMALLINT, {of_h} GENERATED ALWAYS AS(lower(`a`)) STORED COMMENT 'd'",
        f"ALTER TABLE `t` MODIFY COLUMN `g` VARCHAR(40), {of_h} COMMENT 'd'",
    ]


HEX, LOWER = (
    col("g", t.VARCHAR, flen=40, generated_expr_string=f"{f}(`a`)", generated_stored=True) for f in ("hex", "lower")
)
SMALL, TEXT, PLAIN = col("a", t.SHORT), col("a", t.VARCHAR, flen=9), col("g", t.VARCHAR, flen=40)


@pytest.mark.parametrize(
    ("query", "before", "after", "why"),
    [
        ("ADD `g` VARCHAR(40) AS (hex(`a`)) STORED", (TEXT,), (TEXT, HEX), "another family"),
        ("MODIFY `g` VARCHAR(40) AS (lower(`a`)) STORED", (TEXT, HEX), (TEXT, LOWER), "only the source can compute"),
        ("MODIFY `g` VARCHAR(40) AS (hex(`a`)) STORED", (TEXT, PLAIN), (TEXT, HEX), "only the source"),
        ("MODIFY `a` VARCHAR(9)", (SMALL, HEX), (TEXT, HEX), "only the source can compute"),
    ],
)  # fmt: skip
def test_values_that_only_the_source_computed_in_existing_rows_are_refused(
    query: str, before: tuple[Any, ...], after: tuple[Any, ...], why: str
) -> None:
    #
    session = SourceSession(family="mysql")
    with pytest.raises(TargetRefused, match=why) as refused:
        mapped(f"ALTER TABLE `t` {query}", table("t", *after), table("t", *before), session=session)
    assert "ddl-replacement" in refused.value.hint


COUNTED = col("g", not_null=True, comment="c", generated_expr_string="`a` + 1", generated_stored=True)


@pytest.mark.parametrize("dialect", ["mariadb", "mysql"])
def test_a_column_that_the_target_begins_or_ceases_to_compute_is_defined_anew(dialect: Dialect) -> None:
    # its values stay the same, or are those of a proven expression
    small, large = (table("t", column, COUNTED, col("h")) for column in (SMALL, col("a")))
    session = SourceSession(family="mysql", sql_mode=1 << 22)
    ceases = mapped("ALTER TABLE `t` MODIFY `a` INT", large, small, dialect, session)
    assert [squeeze(text) for text in ceases if text.startswith("ALTER")] == [
        "ALTERTABLE`t`MODIFY`a`INT,MODIFYCOLUMN`g`intNOTNULLCOMMENT'c'"
    ]
    begins = mapped("ALTER TABLE `t` MODIFY `a` SMALLINT", small, large, dialect, session)
    assert [squeeze(text) for text in begins if text.startswith("ALTER")] == [
        "ALTERTABLE`t`MODIFY`a`SMALLINT,MODIFYCOLUMN`g`intGENERATEDALWAYSAS(`a`+1)STOREDCOMMENT'c'"
    ]
    hexed = table("t", col("a"), HEX, col("h"))
    own = "ALTER TABLE `t` MODIFY `g` INT GENERATED ALWAYS AS (`a` + 1) STORED"
    assert [squeeze(text) for text in mapped(own, small, hexed, dialect, session) if "`g`" in text] == [squeeze(own)]


def squeeze(text: str) -> str:
    return text.replace(" ", "")


def numbered(name: str) -> dict[str, Any]:
    column = col(name, t.LONGLONG, not_null=True)
    column["type"]["Flag"] |= t.FLAG_AUTO_INCREMENT
    return column


def by_expression(text: str) -> dict[str, Any]:
    return col("f", t.VARCHAR, flen=40, default=text, default_is_expr=True)


TIMED = replace(MYSQL, moment="1700000000.123456")
MADE_UP = [
    # (before, after, session, the rows that must not be there: "" = it may run on any)
    ((col("a"),), (col("a"), numbered("id")), MYSQL, "TRUE"),
    ((col("id", t.LONGLONG),), (numbered("id"),), MYSQL, "`id` IS NULL OR `id` = 0"),
    ((col("id", t.LONGLONG),), (numbered("id"),), replace(MYSQL, sql_mode=1 << 19), "`id` IS NULL"),
    ((numbered("id"),), (numbered("id"), col("a")), MYSQL, ""),
    ((col("a"),), (col("a"), by_expression("uuid()")), MARIADB, "TRUE"),
    ((col("a"),), (col("a"), by_expression("rand() * 5")), MYSQL, "TRUE"),
    ((col("a"),), (col("a"), by_expression("nextval(`d`.`s`)")), MARIADB, "TRUE"),
    ((col("a"),), (col("a"), by_expression("connection_id()")), MARIADB, "TRUE"),
    ((col("a"),), (col("a"), by_expression("concat(`a`,_utf8mb4'uuid()')")), MYSQL, ""),
    ((col("a"),), (col("a"), by_expression("(`a` + 1)")), MYSQL, ""),
    ((col("a"),), (col("a"), by_expression("curdate()")), TIMED, ""),
    ((col("a"),), (col("a"), by_expression("curdate()")), replace(TIMED, zone="+08:00"), "TRUE"),
    ((col("a"),), (col("a"), by_expression("current_date")), replace(TIMED, moment=""), "TRUE"),
    ((col("a"),), (col("a"), numbered("id")), EAST, ""),
]


@pytest.mark.parametrize(("before", "after", "session", "rows"), MADE_UP)
def test_values_that_a_server_makes_up_require_that_no_row_gets_them(
    before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...], session: SourceSession, rows: str
) -> None:
    sides = [
        table("t", *({**column, "id": 7 + len(column["name"]["O"])} for column in side)) for side in (before, after)
    ]
    found = mapped("ALTER TABLE `t` COMMENT 'x'", sides[1], sides[0], "mariadb", session)
    required = [step.where for step in map(RequireNoRows.find_in, found) if step is not None]
    assert required == ([rows] if rows else [])
    assert RequireNoRows.find_in(found[-1]) is None
    timed = any(map(reads_clock, sides[1].columns)) and session.moment
    assert ("SET SESSION timestamp = 1700000000.123456" in found) == bool(timed)
