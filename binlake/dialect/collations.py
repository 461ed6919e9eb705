"""The target's names for the source's collations and character sets (docs/understand/target-mapping.md).

Rule: a collation that the target lacks gets one that calls the same texts equal, as measured character by character, or
none: then its tables are refused.

A TiDB cluster without new collations (new_collations_enabled_on_first_bootstrap = false) compares by bytes, although
its definitions name collations such as `utf8mb4_general_ci`. Definitions and DDL text of such a source get the target's
collation that compares in the same way, trailing blanks included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from binlake.common.sql import Dialect
from binlake.dialect.tokens import Token, TokenKind, render, tokenize
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema.state import DdlSide

MARIADB_COLLATIONS = {
    # MariaDB 10.11 has no UCA 9.0.0; the nearest is UCA 14.0.0 without padding. If the two compare a pair of keys
    # differently, the presence check of finalize detects it.
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_as_ci": "utf8mb4_uca1400_nopad_as_ci",
    "utf8mb4_0900_as_cs": "utf8mb4_uca1400_nopad_as_cs",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}

MYSQL_COLLATIONS = {there: here for here, there in MARIADB_COLLATIONS.items()}
# MySQL has no padding collation of this age. Without padding it keeps apart what the source calls equal, so no row is
# lost. The short names are those of MariaDB's statements.
MYSQL_COLLATIONS |= {
    name.replace("_nopad", padded).removeprefix(prefix): here
    for name, here in MYSQL_COLLATIONS.items()
    if "uca1400" in name
    for prefix in ("", "utf8mb4_")
    for padded in ("", "_nopad")
}
_TIDB = frozenset({"utf8mb4_0900_ai_ci", "utf8mb4_0900_bin"})

DEFAULT_COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "utf8mb3": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "binary": "binary",
    "gbk": "gbk_chinese_ci",
}
"""TiDB's default collation of each character set; MySQL-family servers have other defaults."""
_MARIADB_ONLY = ("_croatian_mysql561_ci", "_myanmar_ci", "_thai_520_w2")
_MYSQL = {"utf8mb4": "utf8mb4_0900_bin"}
"""MySQL's only bytewise collation without padding; for other character sets the nearest is `_bin`, which pads."""
_VIEW_HEAD = 12
"""CREATE VIEW has the keyword VIEW within this many tokens; a character set in a view belongs to an expression."""


def find_target_collation(name: str, dialect: Dialect) -> str:
    """The target's collation for the source's `name`, lower case; `name` itself if it is refused."""
    name = name.lower()
    own = MARIADB_COLLATIONS if dialect == "mariadb" else MYSQL_COLLATIONS
    if name in own and (dialect != "tidb" or own[name] in _TIDB):
        return own[name]
    if dialect != "tidb" and name.startswith("utf8_"):
        return "utf8mb3_" + name.removeprefix("utf8_")
    return name


def has_target_collation(name: str, dialect: Dialect) -> bool:
    """False if the target has no collation that calls the same texts equal as `name`."""
    found = find_target_collation(name, dialect)
    if dialect == "mariadb":
        return "_0900_" not in found and not found.startswith("gb18030_") and found != "utf8mb3_tolower_ci"
    if dialect == "tidb" and "_0900_" in found:
        return found in _TIDB
    return "uca1400" not in found and "_nopad_" not in found and not found.endswith(_MARIADB_ONLY)


def find_target_charset(name: str, dialect: Dialect) -> str:
    """The target's character set for TiDB's `name`, lower case."""
    name = name.lower()
    return "utf8mb3" if name == "utf8" and dialect != "tidb" else name


def choose_bytewise_collation(name: str, dialect: Dialect) -> str:
    """The target's bytewise collation in place of `name`. A TiDB target must have the same bootstrap setting
    instead."""
    charset = name.lower().partition("_")[0]
    if dialect == "tidb" or charset in ("", "binary"):
        return name
    charset = find_target_charset(charset, dialect)
    return f"{charset}_nopad_bin" if dialect == "mariadb" else _MYSQL.get(charset, f"{charset}_bin")


def render_bytewise(query: str, dialect: Dialect) -> str:
    """DDL text with bytewise collations, including those that a character set alone implies."""
    if dialect == "tidb":
        return query
    tokens, put = tokenize(query), list[Token]()
    if any(token.is_word("VIEW") for token in tokens[:_VIEW_HEAD]):
        return query
    at = 0
    while at < len(tokens):
        value = _find_name(tokens, at)
        if not value:
            put.append(tokens[at])
            at += 1
            continue
        named = tokens[at].is_word("COLLATE")
        if not named:
            put += tokens[at : value + 1]
        if named or not _find_name(tokens, value + 1, "COLLATE"):
            put += tokenize(f" COLLATE {choose_bytewise_collation(tokens[value].value, dialect)}")
        at = value + 1
    return render(put)


def _find_name(tokens: Sequence[Token], at: int, *only: str) -> int:
    """Index of the name after COLLATE, CHARSET or CHARACTER SET at `at`; 0 if none of these keywords is at `at`."""
    if at >= len(tokens) or not tokens[at].is_word(*(only or ("COLLATE", "CHARSET", "CHARACTER"))):
        return 0
    if tokens[at].is_word("CHARACTER"):
        at += 1
        if at >= len(tokens) or not tokens[at].is_word("SET"):
            return 0
    at += 1
    at += at < len(tokens) and tokens[at].is_mark("=")
    names = (TokenKind.WORD, TokenKind.NAME, TokenKind.STRING)
    return at if at < len(tokens) and tokens[at].kind in names else 0


def derive_bytewise_definitions(of: DdlSide, dialect: Dialect) -> DdlSide:
    """The definitions of one side of a DDL, with the collations that the target must have."""
    databases = tuple(DbInfo.from_json(_with_collation(db.raw, "collate", dialect)) for db in of.databases)
    return replace(of, databases=databases, tables=tuple(derive_bytewise_table(table, dialect) for table in of.tables))


def derive_bytewise_table(table: TableDef, dialect: Dialect) -> TableDef:
    """The definition with the collations that the target must have."""
    columns = [
        {**column, "type": _with_collation(column["type"], "Collate", dialect)} for column in table.raw["cols"] or ()
    ]
    raw = _with_collation({**table.raw, "cols": columns}, "collate", dialect)
    return TableDef.from_json(raw, DbInfo(table.db_id, table.db, "", "", {}))


def _with_collation(raw: Mapping[str, Any], name: str, dialect: Dialect) -> dict[str, Any]:
    return {**raw, name: choose_bytewise_collation(raw.get(name) or "", dialect)}
