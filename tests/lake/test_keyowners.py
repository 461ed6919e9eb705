"""Which table owned a key at a commit_ts: by its last change, counting a move at both keys (S4-03)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from binlake import tso
from binlake.config.model import LakeSection, Replication
from binlake.ddl.shardlocks import Hold
from binlake.lake.paths import LakePaths
from binlake.lake.sharedtargets import KeyOwner, find_key_owners
from binlake.lake.tables import MUTATION, parse_schema
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema.forms import build_table_json

BASE = 470548480001835008


@pytest.fixture
def paths(tmp_path: Path) -> LakePaths:
    return LakePaths.of(Replication(name="demo", lake=LakeSection(path=str(tmp_path))))


def write(paths: LakePaths, *changes: tuple[int, str, str, str, str | None]) -> None:
    """(position, source table, op, key, new key) of each change of xs.t; a table's id is its number."""
    rows: list[dict[str, Any]] = [
        {"commit_ts": BASE + place, "start_ts": BASE, "seq": 0, "commit_date": tso.to_datetime(BASE).date(),
         "schema_version": 1, "source_db": "s", "source_table": source, "db": "xs", "table": "t",
         "table_id": int(source[1:]), "op": op, "key": key, "new_key": new_key, "before": None, "after": None}
        for place, source, op, key, new_key in changes
    ]  # fmt: skip
    schema = parse_schema(MUTATION.build_spark_schema())
    write_deltalake(paths.locate_table("mutation"), pa.Table.from_pylist(rows, schema), partition_by=["commit_date"])


def test_last_change_up_to_a_commit_ts_decides(paths: LakePaths) -> None:
    write(paths, (1, "t1", "insert", '["1"]', None), (2, "t1", "delete", '["1"]', None),
          (3, "t2", "insert", '["1"]', None), (3, "t1", "insert", '["2"]', None))  # fmt: skip
    asked = ['["1"]', '["2"]', '["3"]']
    assert find_key_owners(paths, "xs", "t", asked, BASE + 1) == {'["1"]': KeyOwner(BASE + 1, "s.t1", 1, left_row=True)}
    assert not find_key_owners(paths, "xs", "t", asked, BASE + 2)['["1"]'].left_row
    late = find_key_owners(paths, "xs", "t", asked, BASE + 9)
    assert {key: (owner.source, owner.left_row) for key, owner in late.items()} == {
        '["1"]': ("s.t2", True),
        '["2"]': ("s.t1", True),
    }
    assert find_key_owners(paths, "xs", "other", asked, BASE + 9) == {}


def test_move_releases_its_old_key_and_takes_the_new_one(paths: LakePaths) -> None:
    write(paths, (1, "t1", "insert", '["1"]', None), (2, "t1", "update", '["1"]', '["5"]'))
    found = find_key_owners(paths, "xs", "t", ['["1"]', '["5"]'], BASE + 9)
    assert {key: owner.left_row for key, owner in found.items()} == {'["1"]': False, '["5"]': True}


def test_held_rows_own_no_key_yet(paths: LakePaths) -> None:  # S4-03
    write(paths, (1, "t2", "insert", '["1"]', None), (5, "t1", "insert", '["1"]', None))
    table = TableDef.from_json(build_table_json(1, "t1", [], [], pk_is_handle=False), DbInfo(1, "s", "", "", {}))
    hold = Hold(("xs", "t"), ("s", "t1"), BASE + 3, BASE + 3, "", table, table)

    def owner(until: int, hold: Hold) -> str:
        return find_key_owners(paths, "xs", "t", ['["1"]'], BASE + until, [hold])['["1"]'].source

    assert (owner(9, hold), owner(9, replace(hold, released=BASE + 12))) == ("s.t2", "s.t2")
    # Once released, or after the end of the hold, the row owns the key.
    assert (owner(9, replace(hold, released=BASE + 8)), owner(9, replace(hold, until=BASE + 4))) == ("s.t1", "s.t1")


def test_more_keys_than_one_read_takes_are_found(paths: LakePaths) -> None:
    write(paths, *((1, "t1", "insert", f'["{number}"]', None) for number in range(250)))
    found = find_key_owners(paths, "xs", "t", [f'["{number}"]' for number in range(300)], BASE + 9)
    assert len(found) == 250
