"""The target's names for the source's collations and character sets (docs/understand/target-mapping.md).

Rule: a collation that the target lacks gets one that calls the same texts equal, as measured character by character, or
none: then its tables are refused.
"""

from __future__ import annotations

from binlake.base.sql import Dialect

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


_MARIADB_ONLY = ("_croatian_mysql561_ci", "_myanmar_ci", "_thai_520_w2")


def find_target_charset(name: str, dialect: Dialect) -> str:
    """The target's character set for TiDB's `name`, lower case."""
    name = name.lower()
    return "utf8mb3" if name == "utf8" and dialect != "tidb" else name
