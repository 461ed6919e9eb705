"""Mode ordered with routes that merge tables is refused when the file is read."""

from __future__ import annotations

from pathlib import Path

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


def read(folder: Path, text: str) -> str:
    """The error's message; empty if there is none."""
    file = folder / "r.toml"
    file.write_bytes(text.replace("{lake}", str(folder)).encode())
    try:
        check_replication(file)
    except ConfigError as error:
        return error.message
    return ""


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


def test_an_error_about_two_sections_begins_with_no_empty_key(tmp_path: Path) -> None:
    ordered = GOOD.replace("[target]", '[target]\nmode = "ordered"')
    found = read(tmp_path, ordered.replace("[lake]", 'shard-mode = "pessimistic"\n[lake]'))
    assert found.startswith("shard-mode = pessimistic does not work with target.mode = ordered")
    found = read(tmp_path, GOOD.replace("[target]", '[validation]\nmode = "full"').replace('host = "127.0.0.1"\n', ""))
    assert found.startswith("`validation` compares the rows of a SQL target")
