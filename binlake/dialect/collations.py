"""The target's names for TiDB's collations and character sets (docs/understand/target-mapping.md)."""

from __future__ import annotations

from binlake.base.dialects import Dialect

MARIADB_COLLATIONS = {
    # MariaDB 10.11 has no UCA 9.0.0; the nearest is UCA 14.0.0 without padding. If the two compare a pair of keys
    # differently, the presence check of finalize detects it.
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
    "utf8mb4_0900_bin": "utf8mb4_nopad_bin",
}

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
    """The target's collation for TiDB's `name`, lower case."""
    name = name.lower()
    if dialect == "mariadb" and name in MARIADB_COLLATIONS:
        return MARIADB_COLLATIONS[name]
    if dialect != "tidb" and name.startswith("utf8_"):
        return "utf8mb3_" + name.removeprefix("utf8_")
    return name


def find_target_charset(name: str, dialect: Dialect) -> str:
    """The target's character set for TiDB's `name`, lower case."""
    name = name.lower()
    return "utf8mb3" if name == "utf8" and dialect != "tidb" else name
