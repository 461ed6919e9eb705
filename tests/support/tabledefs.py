"""Short constructors for table definitions in TiDB's JSON form, for tests of everything after decoding."""

from __future__ import annotations

from typing import Any

from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]

_TEXT = t.STRINGS | {t.ENUM, t.SET}


def col(
    name: str,
    tp: int = t.LONG,
    *,
    not_null: bool = False,
    unsigned: bool = False,
    flen: int = -1,
    decimal: int = -1,
    charset: str = "",
    collate: str = "",
    elems: tuple[str, ...] = (),
    **more: Any,
) -> Json:
    """A column; text types are utf8mb4_bin by default, `charset="binary"` makes them binary."""
    charset = charset or ("utf8mb4" if tp in _TEXT else "binary")
    collate = collate or {"utf8mb4": "utf8mb4_bin", "binary": "binary"}.get(charset, f"{charset}_bin")
    kind = {
        "Tp": tp,
        "Flag": not_null * t.FLAG_NOT_NULL | unsigned * t.FLAG_UNSIGNED,
        "Flen": flen,
        "Decimal": decimal,
        "Charset": charset,
        "Collate": collate,
        "Elems": list(elems),
    }
    return {"name": {"O": name, "L": name.lower()}, "type": kind, "state": 5} | more


def key(name: str, *columns: str | tuple[str, int], primary: bool = False, unique: bool = True) -> Json:
    """An index over columns, or (column, prefix length) pairs."""
    parts = [(c, -1) if isinstance(c, str) else c for c in columns]
    return {
        "idx_name": {"O": name, "L": name.lower()},
        "idx_cols": [{"name": {"O": c, "L": c.lower()}, "offset": 0, "length": length} for c, length in parts],
        "state": 5,
        "is_unique": unique or primary,
        "is_primary": primary,
    }


def primary(*columns: str | tuple[str, int]) -> Json:
    """A primary key."""
    return key("PRIMARY", *columns, primary=True)


def table(name: str, *columns: Json, keys: tuple[Json, ...] = (), db: str = "d", **more: Any) -> TableDef:
    """A table of database `db`, charset utf8mb4, collation utf8mb4_bin."""
    info = {
        "id": 100,
        "name": {"O": name, "L": name.lower()},
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [{**c, "id": i, "offset": i - 1} for i, c in enumerate(columns, 1)],
        "index_info": [{**k, "id": i} for i, k in enumerate(keys, 1)],
        "pk_is_handle": False,
    }
    return TableDef.from_json(info | more, DbInfo(2, db, "utf8mb4", "utf8mb4_bin", {}))
