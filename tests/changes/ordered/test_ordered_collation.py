"""Values that a server treats as equal fold to one text; compared with servers for every character of the BMP."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from string import ascii_lowercase

import pytest
from support.mariadb import MariaDb, execute, rows

from binlake.changes.ordered.keys import fold
from binlake.dialect import find_target_collation

COLLATIONS = ("utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci")
TEXTS = [
    *(chr(code) for code in (*range(33, 0xD800), *range(0xE000, 0xFFFE), *range(0x1F300, 0x1FB00))),
    # One character may have the weight of two: æ and ae, ß and ss.
    *("".join(pair) for pair in product(ascii_lowercase, repeat=2)),
]


@pytest.mark.mariadb
@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("collation", COLLATIONS)
def test_characters_with_equal_weights_fold_to_one_text(server: MariaDb, collation: str) -> None:
    # the sort key of the server decides; a value may fold together with others, never apart
    column = f"v VARCHAR(4) CHARACTER SET utf8mb4 COLLATE {find_target_collation(collation, server.name)}"
    values = ",".join(f"(_utf8mb4 X'{text.encode().hex()}')" for text in TEXTS)
    execute(
        server,
        "DROP DATABASE IF EXISTS app",
        "CREATE DATABASE app",
        f"CREATE TABLE app.c ({column})",
        f"INSERT INTO app.c VALUES {values}",
    )
    found: dict[object, dict[str, str]] = defaultdict(dict)
    known = 0
    for text, weight in rows(server, "SELECT v, WEIGHT_STRING(CONCAT('.', v, '.')) FROM app.c"):
        folded = fold(f".{text}.", collation)
        if folded is not None:
            known += 1
            found[weight].setdefault(folded, text)
    assert known > 33_000
    assert [texts for texts in found.values() if len(texts) > 1] == []


def test_unknown_characters_have_no_folded_text() -> None:
    assert fold("no 5", "utf8mb4_unicode_ci") == "no 5"
    assert fold("№ 5", "utf8mb4_unicode_ci") is None
    assert fold("№ 5 ", "utf8mb4_bin") == "№ 5"
    assert fold("Straße", "utf8mb4_unicode_ci") == fold("STRASSE", "utf8mb4_unicode_ci")
    assert fold("ß", "utf8mb4_general_ci") == "s"
