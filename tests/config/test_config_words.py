"""Errors about settings name the key, and say what is allowed in plain words, whatever library found them."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlake.config.load import check_replication
from binlake.errors import ConfigError

GOOD = """name = "shop"
[lake]
path = "{lake}"
[target]
host = "127.0.0.1"
"""
ROUTE = """
[[routes]]
schema-pattern = "{schema}"
table-pattern = "{table}"
target-schema = "all"
target-table = "t"
"""
CASES = [
    # what replaces what; the message
    (('name = "shop"', 'name = "Shop"'), r"`name`: must have the form ^[a-z][a-z0-9_-]{0,62}$"),
    (('name = "shop"', "name = 5"), "`name`: must be a text in quotes"),
    (('name = "shop"\n', ""), "`name`: is required, and missing"),
    (("[target]", "[target]\nport = 0"), "`target.port`: must be at least 1"),
    (("[target]", '[target]\nport = "x"'), "`target.port`: must be a whole number"),
    (("[target]", '[target]\nmode = "fast"'), "`target.mode`: must be one of 'atomic', 'parallel',"),
    (('[target]\nhost = "127.0.0.1"', 'target = "x"'), "`lake.target`"),
    (("127.0.0.1", "127.0.0.1:3306"), "`target.host`: '127.0.0.1:3306' has a port in it: set `target.port`"),
    (("[target]", "[target]\nlease_s = 9\nlease-s = 9"), "`target`: `lease-s` is set twice"),
    (("[lake]", 'shard-mode = "pessimistic"\n[lake]', "[target]", '[target]\nmode = "ordered"'),
     "shard-mode = pessimistic does not work with target.mode = ordered"),
    (("[lake]", '[validation]\nmode = "full"\n[lake]', '[target]\nhost = "127.0.0.1"', ""), "`validation` compares"),
]  # fmt: skip


def read(folder: Path, text: str) -> str:
    """The error's message; empty if there is none."""
    file = folder / "r.toml"
    file.write_bytes(text.replace("{lake}", str(folder)).encode())
    try:
        check_replication(file)
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize(("changes", "message"), CASES, ids=range(len(CASES)))
def test_an_error_names_the_key_and_what_is_allowed(tmp_path: Path, changes: tuple[str, ...], message: str) -> None:
    text = GOOD
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    found = read(tmp_path, text)
    assert message in found
    assert not found.startswith("``")
    for word in ("Value error", "Input should", "String should", "Field required", "pydantic"):
        assert word not in found


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeff" + GOOD) == ""


def test_mode_ordered_with_merged_tables_is_refused_before_anything_lands(tmp_path: Path) -> None:
    ordered = GOOD.replace("[target]", '[target]\nmode = "ordered"')
    for schema, table in (("shop", "t_*"), ("s?", "t"), ("~^s[0-9]$", "t"), ("shop", "t_[0-9]")):
        route = ROUTE.replace("{schema}", schema).replace("{table}", table)
        assert 'target.mode = "ordered" cannot tell apart' in read(tmp_path, ordered + route)
        assert read(tmp_path, GOOD + route) == ""
    one = ROUTE.replace("{schema}", "shop").replace("{table}", "t")
    assert read(tmp_path, ordered + one) == ""
    extract = '[routes.extract-table]\ntable-regexp = "t_(.*)"\ntarget-column = "c"\n'
    many = ROUTE.replace("{schema}", "shop").replace("{table}", "t_*")
    assert read(tmp_path, ordered + many + extract) == ""
