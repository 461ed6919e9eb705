"""Steps that Binlake itself takes in a DDL, as texts among the DDL's statements. A server that got one would refuse it.

`RequireNoRows` guards a statement that would give rows values of the target's own choice, where the source's are not
known. `RefusedStatement` is in place of a statement that the target has no words for. `CastValues` converts the values
of a column where the target cannot convert as the source did: just before the DDL its rows are the source's, so each
stored value is read, converted by `codec.casts` and written into the shadow column.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import compress
from typing import Any

from binlake.common.sql import Dialect
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema.job import SourceSession
from binlake.statements.batch import StatementBatch

_HEAD, _REFUSES = "BINLAKE REQUIRES ", "BINLAKE REFUSES "
_CONVERTS = "BINLAKE CONVERTS "
_TYPE = ("id", "name", "tp", "flag", "flen", "decimal", "charset", "collate", "elems")
"""The fields of a column on which its texts, literals and conversions depend."""
_NOTHING: dict[str, Any] = {
    "offset": 0, "state": 5, "default": None, "default_bit": None, "default_is_expr": False, "origin_default": None,
    "origin_default_bit": None, "generated_expr": "", "generated_stored": False, "hidden": False, "comment": "",
}  # fmt: skip


@dataclass(frozen=True)
class RequireNoRows:
    """`table`, `where`: SQL text; `why`: what is not known of such rows, and the ways on, for the error. `variable`:
    what is known once it is known that a session of the source had this variable's default."""

    table: str
    where: str
    why: str
    variable: str = ""

    def to_sql(self) -> str:
        """The text in `statement`."""
        values = {name: value for name, value in asdict(self).items() if value}
        return f"{_HEAD}{json.dumps(values, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> RequireNoRows | None:
        """The step that `sql` is; None for a statement of the server."""
        return cls(**json.loads(sql.removeprefix(_HEAD))) if sql.startswith(_HEAD) else None


def assume_default_variables(ddl: StatementBatch) -> StatementBatch:
    """`ddl` without what it requires only because a session of the source may have had other variables."""
    required = [RequireNoRows.find_in(sql) for sql in ddl.sql]
    kept = [one is None or not one.variable for one in required]
    return replace(ddl, sql=tuple(compress(ddl.sql, kept)), expect=tuple(compress(ddl.expect, kept)))


@dataclass(frozen=True)
class RefusedStatement:
    """`why`: the error's message, in full: a server's own, as SIGNAL raises it, ends after 128 characters."""

    why: str

    def to_sql(self) -> str:
        """The text in `statement`."""
        return f"{_REFUSES}{json.dumps(self.why, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> RefusedStatement | None:
        """The refusal that `sql` is; None for any other statement."""
        return cls(json.loads(sql.removeprefix(_REFUSES))) if sql.startswith(_REFUSES) else None


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
        return f"{_CONVERTS}{json.dumps(values, ensure_ascii=False)}"

    @classmethod
    def find_in(cls, sql: str) -> CastStep | None:
        """The step that `sql` is; None for a statement of the server."""
        if not sql.startswith(_CONVERTS):
            return None
        raw = json.loads(sql.removeprefix(_CONVERTS))
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
