"""Short constructors for TableInfo, DBInfo and job JSON in TiDB's form."""

from __future__ import annotations

import json
from typing import Any

from binlake.rows.schema import DbInfo, DdlJob, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]


def name(text: str) -> Json:
    return {"O": text, "L": text.lower()}


def column(column_id: int, title: str, tp: int = t.LONG, *, flag: int = 0, flen: int = -1, decimal: int = -1,
           charset: str = "", elems: list[str] | None = None, **more: Any) -> Json:  # fmt: skip
    default_charset = "utf8mb4" if tp in t.STRINGS or tp in (t.ENUM, t.SET) else "binary"
    data = {
        "id": column_id,
        "name": name(title),
        "offset": 0,
        "origin_default": None,
        "default": None,
        "generated_expr_string": "",
        "generated_stored": False,
        "type": {
            "Tp": tp,
            "Flag": flag,
            "Flen": flen,
            "Decimal": decimal,
            "Charset": charset or default_charset,
            "Collate": "",
            "Elems": elems,
        },
        "state": 5,
        "hidden": False,
    }
    return data | more


def index(index_id: int, title: str, columns: list[tuple[str, int]], *, unique: bool = False, primary: bool = False,
          state: int = 5) -> Json:  # fmt: skip
    return {
        "id": index_id,
        "idx_name": name(title),
        "idx_cols": [{"name": name(c), "offset": 0, "length": length} for c, length in columns],
        "state": state,
        "is_unique": unique,
        "is_primary": primary,
    }


def table_info(table_id: int, title: str, cols: list[Json], **more: Any) -> Json:
    placed = [{**c, "offset": offset} for offset, c in enumerate(cols)]
    offsets = {c["name"]["O"]: c["offset"] for c in placed}
    indexes = [
        {**i, "idx_cols": [{**c, "offset": offsets[c["name"]["O"]]} for c in i["idx_cols"]]}
        for i in more.pop("index_info", [])
    ]
    info = {
        "id": table_id,
        "name": name(title),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": placed,
        "index_info": indexes,
        "state": 5,
        "pk_is_handle": False,
        "is_common_handle": False,
        "partition": None,
        "view": None,
        "sequence": None,
    }
    return info | more


def db_info(db_id: int, title: str) -> Json:
    return {"id": db_id, "db_name": name(title), "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}


def table_def(info: Json, db: str = "test") -> TableDef:
    return TableDef.from_json(info, DbInfo.from_json(db_info(2, db)))


def job(action: int, version: int, **more: Any) -> DdlJob:
    """A synced job of schema 2 (`test`); `info`, `db`, `many`, and any field of the job by keyword."""
    info, db, many = more.pop("info", None), more.pop("db", None), more.pop("many", None)
    data = {
        "id": 1000 + version,
        "type": action,
        "schema_id": 2,
        "table_id": info["id"] if info else 0,
        "schema_name": "test",
        "table_name": info["name"]["O"] if info else "",
        "state": 6,
        "query": "",
        "start_ts": 0,
        "binlog": {
            "SchemaVersion": version,
            "DBInfo": db,
            "TableInfo": info,
            "FinishedTS": version * 10 + 5,
            "MultipleTableInfos": many,
        },
    }
    return DdlJob.parse(json.dumps(data | more))


INT_PK = t.FLAG_PRIMARY | t.FLAG_NOT_NULL


def article_table() -> TableDef:
    """The article's `test` (id int, name varchar(24), primary key (id)), table id 45."""
    cols = [column(1, "id", flag=INT_PK, flen=11, decimal=0), column(2, "name", t.VARCHAR, flen=24)]
    return table_def(table_info(45, "test", cols, pk_is_handle=True))


class Tables:
    """A table lookup over a few definitions."""

    def __init__(self, *tables: TableDef, gone: tuple[int, ...] = ()) -> None:
        self.by_id = {t.id: t for t in tables}
        self.gone = gone

    def find_table(self, table_id: int) -> TableDef | None:
        return self.by_id.get(table_id)

    def is_gone(self, table_id: int) -> bool:
        return table_id in self.gone
