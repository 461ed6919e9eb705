"""MariaDB's hidden columns: for a unique key over texts too long for an index, rows end with a hash of the texts.

No definition shows these columns, and each row of the log has them.
"""

from __future__ import annotations

from itertools import pairwise

from binlake.dialect.tokens import tokenize
from binlake.mysqlbinlog.model import TableMap
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_name_json, fold_name
from binlake.rows.schema.info import CREATE_KEY

_NAME = "db_row_hash_"


def find_hash_columns(table: TableDef, event: TableMap) -> list[ColumnInfo]:
    """The hash columns that `event` has after the columns of `table`, as virtual columns: no row here contains them."""
    first = len(table.all_columns)
    extra = event.types[first:]
    names = event.names[first:] if event.names is not None else [f"{_NAME}{n + 1}" for n in range(len(extra))]
    are_hashes = set(extra) == {t.LONGLONG} and all(fold_name(name).startswith(_NAME) for name in names)
    if not are_hashes or len(extra) != _count_hash_keys(table):
        return []
    return [_build_hash_column(name, first + n) for n, name in enumerate(names)]


def _count_hash_keys(table: TableDef) -> int:
    tokens = tokenize(str(table.raw.get(CREATE_KEY, "")))
    return sum(using.is_word("USING") and how.is_word("HASH") for using, how in pairwise(tokens))


def _build_hash_column(name: str, offset: int) -> ColumnInfo:
    kind = {
        "Tp": t.LONGLONG,
        "Flag": t.FLAG_UNSIGNED,
        "Flen": 20,
        "Decimal": 0,
        "Charset": "binary",
        "Collate": "binary",
    }
    more = {"id": 0, "offset": offset, "state": 5, "generated_expr_string": "hash", "hidden": True}
    return ColumnInfo.from_json({"name": build_name_json(name), "type": kind, **more})
