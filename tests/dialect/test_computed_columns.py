"""Which stored generated columns a target computes once, and how; the servers are compared by test_e2e_generated."""

from __future__ import annotations

from typing import Any

import pytest
from support.mariadb import MariaDb, empty_database
from support.tabledefs import col, primary, table

from binlake.common.sql import Dialect
from binlake.dialect.givenvalues import (
    build_once_computed_specs,
    build_reader_specs,
    find_computed_once,
    require_no_filled_operands,
)
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import render, tokenize_with_spaces
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.statements.ddlsteps import RequireNoRows

STRICT, LENIENT = SourceSession(family="mysql", sql_mode=1 << 22), SourceSession(family="mysql")
A, AT = col("a", t.VARCHAR, flen=9), col("at", t.TIMESTAMP)


def hexed(name: str, **more: Any) -> dict[str, Any]:
    return col("g", t.VARCHAR, flen=40, generated_expr_string=f"hex(`{name}`)", generated_stored=True, **more)


def of(*columns: dict[str, Any], **more: Any) -> TableDef:
    return table("t", A, AT, *columns, **more)


@pytest.mark.parametrize(
    ("after", "dialect", "why"),
    [
        (of(hexed("a")), "mysql", ""),
        (of(hexed("a")), "mariadb", ": a server of another family may compute it differently"),
        (of(hexed("at")), "mysql", ": it depends on the time zone of the session that wrote each row"),
        (of(hexed("a", not_null=True), keys=(primary("g"),)), "mysql", ": it is in the primary key"),
    ],
)
def test_values_of_existing_rows_are_computed_or_refused_with_the_reason(
    after: TableDef, dialect: Dialect, why: str
) -> None:
    if why:
        with pytest.raises(Unmappable) as refused:
            find_computed_once(of(), after, STRICT, dialect)
        assert refused.value.clause.endswith(f"whose values in existing rows only the source can compute{why}")
        return
    assert [column.name for column in find_computed_once(of(), after, STRICT, dialect)] == ["g"]
    for sides in ((None, after), (after, None), (after, after)):
        assert find_computed_once(*sides, STRICT, dialect) == []


def test_rows_whose_null_became_a_zero_are_refused_in_a_lenient_session() -> None:
    number = table("t", col("a"), hexed("a"), col("h", generated_expr_string="`a` is null", generated_stored=True))
    filled = table("t", col("a", not_null=True), hexed("a"), number.raw["cols"][2])
    (step,) = require_no_filled_operands("t", number, filled, LENIENT, "mysql")
    found = RequireNoRows.find_in(step)
    assert found is not None
    assert (found.table, found.where) == ("t", "`a` IS NULL")
    assert "the stored generated column g anew" in found.why
    for before, after, session in ((None, filled, LENIENT), (number, None, LENIENT), (number, filled, STRICT)):
        assert require_no_filled_operands("t", before, after, session, "mysql") == []
    assert require_no_filled_operands("t", number, filled, SourceSession(lenient=True), "mysql") == []


@pytest.mark.parametrize(
    ("spec", "generated", "plain"),
    [
        ("ADD COLUMN IF NOT EXISTS `g` VARCHAR(40) NOT NULL COMMENT 'c' UNIQUE FIRST",
         "ADD COLUMN IF NOT EXISTS `g` VARCHAR(40) GENERATED ALWAYS AS (hex(`a`)) STORED COMMENT 'c' UNIQUE FIRST",
         "MODIFY COLUMN `g` VARCHAR(40) NOT NULL COMMENT 'c'"),
        ("CHANGE `unique` `g` INT AFTER `a`",
         "CHANGE `unique` `g` INT GENERATED ALWAYS AS (hex(`a`)) STORED AFTER `a`", "MODIFY COLUMN `g` INT"),
        ("MODIFY `g` INT", "MODIFY `g` INT GENERATED ALWAYS AS (hex(`a`)) STORED", "MODIFY COLUMN `g` INT"),
        ("ADD KEY `g` (`g`)", "ADD KEY `g` (`g`)", ""),
        ("DROP `g`", "DROP `g`", ""), ("ADD", "ADD", ""), ("CHANGE `g`", "CHANGE `g`", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_a_written_definition_becomes_generated_and_then_plain(spec: str, generated: str, plain: str) -> None:
    (column,) = of(hexed("a")).columns[2:]
    whole = "MODIFY COLUMN `g` varchar(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    specs, later = build_once_computed_specs([tokenize_with_spaces(spec)], [column], "mysql")
    expected = (
        ([generated], [plain]) if plain else ([generated, f"{whole} GENERATED ALWAYS AS (hex(`a`)) STORED"], [whole])
    )
    assert [list(map(squeeze, side)) for side in (specs, later)] == [
        [text.replace(" ", "") for text in side] for side in expected
    ]


CALLS = (
    "trim(`a`)",
    "substr(`a`,2,1)",
    "cast(`a` as signed)",
    "concat(`a`,X'41',_utf8mb4'z')",
    "extract(year from `at`)",
)
"""A server reads these names as those of its own functions only with the parenthesis right behind."""


@pytest.mark.mariadb
@pytest.mark.parametrize("words", ["ADD COLUMN `g` VARCHAR(40)", ""])
def test_the_servers_read_the_functions_of_a_column_that_is_computed_once(server: MariaDb, words: str) -> None:
    #
    specs = [tokenize_with_spaces(words)] if words else []
    with empty_database(server, "once"), server.connect() as link, link.cursor() as cursor:
        for call in CALLS:
            (column,) = of(hexed("a") | {"generated_expr_string": call}).columns[2:]
            cursor.execute("DROP TABLE IF EXISTS once.t")
            cursor.execute(f"CREATE TABLE once.t (a VARCHAR(9), at DATETIME{'' if words else ', g INT'})")
            cursor.execute("INSERT INTO once.t (a, at) VALUES (' 12 ', '2021-03-03')")
            for side in build_once_computed_specs(specs, [column], "mysql"):
                cursor.execute(f"ALTER TABLE once.t {', '.join(map(render, side))}")
            cursor.execute(f"SELECT COUNT(*) FROM once.t WHERE NOT g <=> CONCAT({call}, '')")
            assert cursor.fetchall() == ((0,),), call


def squeeze(tokens: Any) -> str:
    return render(tokens).replace(" ", "")


def test_only_generated_columns_are_defined_anew() -> None:
    plain, made = table("t", col("a"), col("g")), table("t", col("a"), col("g", generated_expr_string="`a` is null"))
    for before, after in ((plain, made), (made, plain), (made, made), (None, made), (made, None)):
        assert build_reader_specs(before, after, [], "mysql") == []
