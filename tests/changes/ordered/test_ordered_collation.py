"""Values that a server takes for equal fold to one text: asked of MariaDB for every character of the BMP."""

from __future__ import annotations

from collections import defaultdict

import pytest
from support.mariadb import MariaDb, execute, rows

from binlake.changes.ordered.collation import fold

COLLATIONS = {
    "utf8mb4_general_ci": "utf8mb4_general_ci",
    "utf8mb4_unicode_ci": "utf8mb4_unicode_ci",
    # What stands for TiDB's collation on MariaDB (binlake.dialect.collations).
    "utf8mb4_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci",
}


@pytest.mark.mariadb
@pytest.mark.parametrize("collation", COLLATIONS)
def test_characters_of_one_weight_fold_to_one_text(mariadb: MariaDb, collation: str) -> None:
    # the sort key of the server decides; a value may fold together with others, never apart
    execute(
        mariadb,
        "DROP DATABASE IF EXISTS app",
        "CREATE DATABASE app",
        f"CREATE TABLE app.c (v VARCHAR(4) CHARACTER SET utf8mb4 COLLATE {COLLATIONS[collation]})",
        "INSERT INTO app.c SELECT CONVERT(CHAR(seq USING utf32) USING utf8mb4) FROM app.seq_33_to_65533"
        " WHERE seq NOT BETWEEN 55296 AND 57343",
        "INSERT INTO app.c SELECT CONVERT(CHAR(seq USING utf32) USING utf8mb4) FROM app.seq_127744_to_129791",
        # One character may weigh as two: æ and ae, ß and ss.
        "INSERT INTO app.c SELECT CONCAT(CHAR(a.seq), CHAR(b.seq)) FROM app.seq_97_to_122 a, app.seq_97_to_122 b",
    )
    found: dict[object, dict[str, str]] = defaultdict(dict)
    known = 0
    for text, weight in rows(mariadb, "SELECT v, WEIGHT_STRING(CONCAT('.', v, '.')) FROM app.c"):
        folded = fold(f".{text}.", collation)
        if folded is not None:
            known += 1
            found[weight].setdefault(folded, text)
    assert known > 33_000
    assert [texts for texts in found.values() if len(texts) > 1] == []


def test_what_is_not_known_has_no_text() -> None:
    assert fold("no 5", "utf8mb4_unicode_ci") == "no 5"
    assert fold("№ 5", "utf8mb4_unicode_ci") is None
    assert fold("№ 5 ", "utf8mb4_bin") == "№ 5"
    assert fold("Straße", "utf8mb4_unicode_ci") == fold("STRASSE", "utf8mb4_unicode_ci")
    assert fold("ß", "utf8mb4_general_ci") == "s"
