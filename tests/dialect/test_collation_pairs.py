"""A collation that the target lacks gets one that calls the same texts equal, or is refused; on real servers."""

from __future__ import annotations

import unicodedata

import pytest
from support.mariadb import MariaDb, rows
from support.tabledefs import col, primary, table

from binlake.common.sql import Dialect
from binlake.dialect import find_target_collation, has_target_collation
from binlake.dialect.collations import MARIADB_COLLATIONS
from binlake.rows.schema import mysqltypes as t
from binlake.target.apply.preflight import find_missing_collations

ROOTS = {"ai_ci": 64, "as_ci": 6, "as_cs": 5}
"""The number of characters that the two servers do not call equal to the same others."""
CHARACTERS = [
    code
    for start, end in ((1, 0x3100), (0xA000, 0xABFF), (0xF900, 0x10000), (0x10000, 0x10A00), (0x1D400, 0x1D800))
    for code in range(start, end)
    if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
]
_LATER_THAN_UNICODE_9 = "FBC0"
"""The weight of a character that MySQL does not know begins with this or more."""


def read_weights(server: MariaDb) -> dict[str, dict[int, str]]:
    """By kind of collation and code point: the weight on `server`."""
    texts = ",".join(f"({code},CONVERT(_utf32 X'{code:08X}' USING utf8mb4))" for code in CHARACTERS)
    names = [find_target_collation(f"utf8mb4_0900_{kind}", server.name) for kind in ROOTS]
    weights = ",".join(f"HEX(WEIGHT_STRING(s COLLATE {name}))" for name in names)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE test_weights.w (c INT, s VARCHAR(2) CHARACTER SET utf8mb4)")
        cursor.execute(f"INSERT INTO test_weights.w VALUES {texts}")
        cursor.execute(f"SELECT c, {weights} FROM test_weights.w")
        found = cursor.fetchall()
    return {kind: {row[0]: row[number] for row in found} for number, kind in enumerate(ROOTS, 1)}


def group_equal(weights: dict[int, str], known: set[int]) -> dict[int, frozenset[int]]:
    groups: dict[str, set[int]] = {}
    for code in known:
        groups.setdefault(weights[code], set()).add(code)
    return {code: frozenset(groups[weights[code]]) for code in known}


@pytest.mark.mariadb
def test_paired_collations_call_the_same_characters_equal(mariadb: MariaDb, mysql_target: MariaDb) -> None:
    for server in (mariadb, mysql_target):
        rows(server, "CREATE DATABASE IF NOT EXISTS test_weights")
    here, there = read_weights(mysql_target), read_weights(mariadb)
    known = {code for code, weight in here["as_cs"].items() if weight[:4] < _LATER_THAN_UNICODE_9}
    assert len(known) > 18_000
    for kind, most in ROOTS.items():
        ours, theirs = group_equal(here[kind], known), group_equal(there[kind], known)
        assert sum(ours[code] != theirs[code] for code in known) == most, kind


@pytest.mark.mariadb
@pytest.mark.parametrize("target", ["mariadb", "mysql"])
def test_every_collation_is_there_or_refused(target: Dialect, mariadb: MariaDb, mysql_target: MariaDb) -> None:
    names = {
        "mariadb": "SELECT FULL_COLLATION_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
        "mysql": "SELECT COLLATION_NAME FROM information_schema.COLLATIONS",
    }
    found = {server.name: {name for (name,) in rows(server, names[server.name])} for server in (mariadb, mysql_target)}
    (other,) = set(found) - {target}
    for name in found[other]:
        mapped = find_target_collation(name, target)
        assert (mapped in found[target]) == has_target_collation(name, target), name
    # What both have keeps its name.
    assert all(find_target_collation(name, target) == name for name in found["mariadb"] & found["mysql"])


def test_collations_are_paired_both_ways() -> None:
    for name, paired in MARIADB_COLLATIONS.items():
        assert (find_target_collation(name, "mariadb"), find_target_collation(paired, "mysql")) == (paired, name)
    for name in ("utf8mb4_uca1400_ai_ci", "uca1400_ai_ci", "uca1400_nopad_ai_ci", "UTF8MB4_UCA1400_AI_CI"):
        assert find_target_collation(name, "mysql") == find_target_collation(name, "tidb") == "utf8mb4_0900_ai_ci"
    assert not has_target_collation("utf8mb4_0900_as_cs", "tidb")
    assert has_target_collation("utf8mb4_general_ci", "tidb")


def test_table_with_a_refused_collation_is_named_before_its_load() -> None:
    made = table(
        "t",
        col("id", not_null=True),
        col("v", t.VARCHAR, flen=9, collate="utf8mb4_uca1400_swedish_as_cs"),
        col("w", t.VARCHAR, flen=9, collate="utf8mb4_uca1400_ai_ci"),
        keys=(primary("id"),),
    )
    assert find_missing_collations(made, "mysql") == ["utf8mb4_uca1400_swedish_as_cs"]
    assert find_missing_collations(made, "mariadb") == []
