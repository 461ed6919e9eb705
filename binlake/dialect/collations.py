"""Collations and character sets of TiDB in the names of the target (docs/understand/target-mapping.md)."""

from __future__ import annotations

from binlake.base.dialects import Dialect

MARIADB_COLLATIONS = {
    # MariaDB 10.11 has no UCA 9.0.0; UCA 14.0.0 without padding is its nearest, and the presence check of finalize
    # finds a pair of keys that the two weigh differently.
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
"""What TiDB takes when a character set is named alone; MySQL-family servers take another."""


def target_collation(name: str, dialect: Dialect) -> str:
    """The target's collation for TiDB's `name`, lower case."""
    name = name.lower()
    if dialect == "mariadb" and name in MARIADB_COLLATIONS:
        return MARIADB_COLLATIONS[name]
    if dialect != "tidb" and name.startswith("utf8_"):
        return "utf8mb3_" + name.removeprefix("utf8_")
    return name


def target_charset(name: str, dialect: Dialect) -> str:
    """The target's character set for TiDB's `name`, lower case."""
    name = name.lower()
    return "utf8mb3" if name == "utf8" and dialect != "tidb" else name
