"""A step of a DDL in which Binlake itself converts the values of a column, as a text among the DDL's statements.

A target that cannot convert as the source did gets the values written: just before the DDL its rows are the source's,
so each stored value is read, converted by `codec.casts` and written into the shadow column. A server that got the
text would refuse it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from binlake.base.sql import Dialect
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema.job import SourceSession

_HEAD = "BINLAKE CONVERTS "
_TYPE = ("id", "name", "tp", "flag", "flen", "decimal", "charset", "collate", "elems")
"""The fields of a column on which its texts, literals and conversions depend."""
_NOTHING: dict[str, Any] = {
    "offset": 0, "state": 5, "default": None, "default_bit": None, "default_is_expr": False, "origin_default": None,
    "origin_default_bit": None, "generated_expr": "", "generated_stored": False, "hidden": False, "comment": "",
}  # fmt: skip


@dataclass(frozen=True)
class CastStep:
    """Convert column `source` of `table` (as SQL text) to `target`, into the column `shadow`.

    `key`: the columns that identify a row; empty for a table without a key, whose rows are found by the value. `kept`:
    columns that the target would set to the current time if it were not told to keep them.
    """

    table: str
    key: tuple[ColumnInfo, ...]
    source: ColumnInfo
    target: ColumnInfo
    shadow: str
    kept: tuple[str, ...]
    session: SourceSession
    dialect: Dialect

    def to_sql(self) -> str:
        """The text in `statement`."""
        values = {
            "table": self.table, "key": [_to_dict(column) for column in self.key], "source": _to_dict(self.source),
            "target": _to_dict(self.target), "shadow": self.shadow, "kept": self.kept,
            "session": self.session.to_dict(), "dialect": self.dialect,
        }  # fmt: skip
        return f"{_HEAD}{json.dumps(values, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> CastStep | None:
        """The step that `sql` is; None for a statement of the server."""
        if not sql.startswith(_HEAD):
            return None
        raw = json.loads(sql.removeprefix(_HEAD))
        return cls(
            raw["table"],
            tuple(map(_to_column, raw["key"])),
            _to_column(raw["source"]),
            _to_column(raw["target"]),
            raw["shadow"],
            tuple(raw["kept"]),
            SourceSession.from_dict(raw["session"]),
            raw["dialect"],
        )


def _to_dict(column: ColumnInfo) -> dict[str, Any]:
    return {name: value for name, value in asdict(column).items() if name in _TYPE}


def _to_column(raw: dict[str, Any]) -> ColumnInfo:
    return ColumnInfo(**{**_NOTHING, **raw, "elems": tuple(raw["elems"])})
