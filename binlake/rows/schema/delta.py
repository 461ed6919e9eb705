"""The changes of one DDL: definitions of the databases and tables it touched, before and after, as JSON for the
lake."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from binlake.errors import SchemaError
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.session import SourceSession
from binlake.rows.schema.state import SchemaState


@dataclass(frozen=True)
class DdlSide:
    """One side of a DDL: the touched objects that existed before or after it; `session`: the source's session."""

    databases: tuple[DbInfo, ...]
    tables: tuple[TableDef, ...]
    session: SourceSession = field(default_factory=SourceSession)

    def to_json(self) -> str:
        """`{"databases": [raw DBInfo…], "tables": [{"db_id": …, "db": name, "info": raw TableInfo}…]}`.

        If something about the session is known, also `"session": {"zone": …, "day": …}`.
        """
        tables = [{"db_id": table.db_id, "db": table.db, "info": table.raw} for table in self.tables]
        value: dict[str, object] = {"databases": [db.raw for db in self.databases], "tables": tables}
        if session := self.session.to_dict():
            value["session"] = session
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DdlSide:
        """Parse what `to_json` wrote. Raises SchemaError."""
        try:
            raw = json.loads(text)
            databases = tuple(DbInfo.from_json(db) for db in raw["databases"])
            tables = tuple(TableDef.from_json(t["info"], _build_database(t["db_id"], t["db"])) for t in raw["tables"])
            session = SourceSession.from_dict(raw.get("session") or {})
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"definitions of a DDL cannot be read: {error!r}") from error
        return cls(databases, tables, session)


def _build_database(db_id: int, name: str) -> DbInfo:
    return DbInfo(db_id, name, "", "", {})


def find_touched(before: SchemaState, after: SchemaState) -> tuple[DdlSide, DdlSide]:
    """(before, after): the definitions of every database and table that differs; tables are compared by object
    identity."""
    touched = after.list_touched(before)
    return _build_side(before, after, touched), _build_side(after, before, touched)


def _build_side(mine: SchemaState, other: SchemaState, touched: Sequence[int]) -> DdlSide:
    others = {db.id: db for db in other.list_databases()}
    databases = tuple(db for db in mine.list_databases() if db != others.get(db.id))
    both = ((mine.get_table(key), other.get_table(key)) for key in touched)
    return DdlSide(databases, tuple(own for own, else_ in both if own is not None and own is not else_))
