"""Names, databases, tables, indexes and jobs in the form of TiDB's JSON; the other modules of this package parse it.

Fields that a real TiDB writes but nothing here reads are left out (tidb-binlog 1.13). Names are compared by their
lower-case forms (`fold_name`), but Binlake writes a name as its definition spells it (`O` of TiDB's names), because a
target on Linux distinguishes `Users` from `users`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from binlake.rows.schema.job import Action

Json = dict[str, Any]
CHARSET, COLLATE = "utf8mb4", "utf8mb4_bin"


def fold_name(name: str) -> str:
    """The form by which TiDB compares a name (its `L`): each character is converted to lower case alone, as Go does.

    Unlike `str.lower`, it knows no final sigma (`ΟΔΟΣ` becomes `οδοσ`) and converts `İ` to a single `i`.
    """
    if name.isascii():
        return name.lower()
    return "".join("i" if character == "İ" else character.lower() for character in name)


def fold_pair(name: tuple[str, str]) -> tuple[str, str]:
    """`fold_name` of (database, table)."""
    return fold_name(name[0]), fold_name(name[1])


def build_index_json(index_id: int, name: str, key: Sequence[tuple[str, int]], *, unique: bool, primary: bool) -> Json:
    """One element of TableInfo.index_info; `key`: (column, its offset) of each part."""
    parts = [{"name": build_name_json(column), "offset": offset, "length": -1} for column, offset in key]
    return {"id": index_id, "idx_name": build_name_json(name), "idx_cols": parts, "state": 5,
            "is_unique": unique, "is_primary": primary, "is_invisible": False}  # fmt: skip


def build_table_json(table_id: int, name: str, cols: list[Json], indexes: list[Json], *, pk_is_handle: bool) -> Json:
    """A TableInfo."""
    return {
        "id": table_id, "name": build_name_json(name), "charset": CHARSET, "collate": COLLATE, "cols": cols,
        "index_info": indexes, "state": 5, "pk_is_handle": pk_is_handle, "is_common_handle": False,
        "common_handle_version": 0, "partition": None, "view": None, "sequence": None, "comment": "",
    }  # fmt: skip


def build_database_json(database_id: int, name: str) -> Json:
    """A DBInfo."""
    return {"id": database_id, "db_name": build_name_json(name), "charset": CHARSET, "collate": COLLATE, "state": 5}


def build_job_json(
    job_id: int, action: Action, query: str, *, schema: tuple[int, str], table: tuple[int, str], version: int,
    start_ts: int, finished_ts: int, db_info: Json | None = None, table_info: Json | None = None,
) -> Json:  # fmt: skip
    """A finished job as `/ddl/history` shows it; `schema` and `table`: (id, name); a job has names in lower case."""
    return {
        "id": job_id, "type": int(action), "schema_id": schema[0], "table_id": table[0],
        "schema_name": fold_name(schema[1]), "table_name": fold_name(table[1]), "state": 6, "err": None,
        "err_count": 0, "row_count": 0, "raw_args": None, "schema_state": 5, "query": query, "start_ts": start_ts,
        "charset": CHARSET, "collate": COLLATE,
        "binlog": {"SchemaVersion": version, "DBInfo": db_info, "TableInfo": table_info, "FinishedTS": finished_ts,
                   "MultipleTableInfos": None},
    }  # fmt: skip


def build_name_json(name: str) -> Json:
    """TiDB's CIStr."""
    return {"O": name, "L": fold_name(name)}
