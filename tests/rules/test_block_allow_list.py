"""DM's block-allow-list, and the choice between it and the drainer's lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from binlake.common.sections import BlockAllowList
from binlake.config import load_replication
from binlake.errors import ConfigError
from binlake.rules.tables import BlockAllow


def lists(**values: Any) -> BlockAllow:
    return BlockAllow(BlockAllowList.model_validate({key.replace("_", "-"): value for key, value in values.items()}))


def pair(db: str, table: str) -> dict[str, str]:
    return {"db-name": db, "tbl-name": table}


def test_databases_are_checked_before_tables() -> None:
    keeps = lists(do_dbs=["shop*"], do_tables=[pair("shop_1", "t?")], ignore_tables=[pair("shop*", "t9")]).keeps
    assert keeps("shop_1", "t1")
    assert keeps("shop_1", "t9")
    assert not keeps("shop_1", "other")
    assert not keeps("shop_2", "t1")
    assert not keeps("bank", "t1")
    # For a DDL on a database, only the first step is checked.
    assert keeps("shop_2", "")


def test_ignore_lists_apply_without_do_lists() -> None:
    keeps = lists(ignore_dbs=["~^tmp"], ignore_tables=[pair("*", "log_*")]).keeps
    assert keeps("shop", "t")
    assert not keeps("TMP_1", "t")
    assert not keeps("shop", "log_1")
    assert not lists(do_dbs=["a"], ignore_dbs=["b"]).keeps("c", "t")


def test_system_databases_are_always_left_out() -> None:
    keeps = lists(do_dbs=["*"]).keeps
    assert not keeps("mysql", "user")
    assert not keeps("SYS", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[filter]\nignore-schemas = "x"\n[block-allow-list]\ndo-dbs = "a"', "not with both"),
        ('[[filters]]\nschema-pattern = "a"\nevents = ["insrt"]\naction = "Ignore"', "did you mean `insert`"),
        ('[[expression-filter]]\nschema = "a"\ntable = "t"\ninsert-value-expr = "a >"', "expression="),
        (
            '[[expression-filter]]\nschema = "a"\ntable = "t"\ninsert-value-expr = "a"\ndelete-value-expr = "a"',
            "one kind",
        ),
        ("[loopback]\nloopback-control = true", "sync-ddl"),
        ('[[routes]]\nschema-pattern = "a"\ntarget-scheme = "b"', "did you mean `target-schema`"),
    ],
)
def test_contradicting_rules_in_a_file_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'name = "r"\n{text}\n[lake]\npath = "/x"\n')
    with pytest.raises(ConfigError, match=message):
        load_replication(path)


def test_rules_change_the_hash_of_a_window(tmp_path: Path) -> None:
    hashes = set()
    for text in ("", '[[routes]]\nschema-pattern = "a"\ntarget-schema = "b"', '[block-allow-list]\ndo-dbs = "a"'):
        path = tmp_path / "r.toml"
        path.write_text(f'name = "r"\n{text}\n[lake]\npath = "/x"\n')
        hashes.add(load_replication(path).compute_data_hash())
    assert len(hashes) == 3
