"""Decide how a target makes the conversion of a MODIFY COLUMN: by its own ALTER, by an expression, or by our values.

MySQL and MariaDB convert many values differently (`12.6` as an INT is 13 in MySQL and 12 in MariaDB). A source of one
family and a target of the other convert only the pairs of types in `ALIKE` alike; each was measured on both servers. A
pair that the source converts as TiDB does is converted as for a TiDB source. The rest is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from binlake.common.sql import Dialect
from binlake.dialect.casting import cast_expression, find_type_group, needs_day, needs_zone
from binlake.dialect.routed import Unmappable
from binlake.rows.codec.casts import knows_pair
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema.job import SourceSession

ALIKE = {
    "integer": "integer decimal real bit year text binary json",
    "decimal": "integer decimal real year text binary json",
    "real": "integer decimal real bit text binary json",
    "bit": "integer decimal real bit year binary",
    "year": "integer decimal real bit year text binary",
    "text": "decimal real year text binary timestamp datetime date enum json",
    "binary": "decimal real text binary",
    "timestamp": "integer decimal real text binary timestamp datetime date time",
    "datetime": "integer decimal real text binary timestamp datetime date time",
    "date": "integer decimal real text binary timestamp datetime date",
    "time": "integer decimal real text binary timestamp datetime time",
    "enum": "integer decimal real text binary enum",
    "set": "integer decimal real text binary set",
}
"""The pairs that MySQL and MariaDB convert alike, in sessions that round alike (tests/target/ddl/test_families.py)."""
_WHOLE = frozenset(
    (former, now) for former in ("timestamp", "datetime", "time") for now in ("integer", "date") if former != now
)
"""Pairs that are alike only without fractions of a second: MySQL rounds these, MariaDB cuts."""
_AS_TIDB_IN_MYSQL = frozenset({("text", "integer"), ("datetime", "integer"), ("timestamp", "integer")})
"""Pairs that MySQL converts as TiDB does, though other servers need an expression for them."""


@dataclass(frozen=True)
class Way:
    """`expression`: SQL that converts; empty: the target's ALTER does it, or, `by_values`, Binlake writes the
    values."""

    expression: str = ""
    by_values: bool = False


_ITSELF, _BY_VALUES = Way(), Way(by_values=True)


def choose_way(name: str, source: ColumnInfo, target: ColumnInfo, session: SourceSession, dialect: Dialect) -> Way:
    """How a target of `dialect` converts the quoted column `name` as the source did. Raises Unmappable."""
    if not session.family:
        return _choose_as_tidb(name, source, target, session, dialect)
    if session.family == dialect:
        return _ITSELF
    if converts_as_tidb(source, target, session):
        # In a session that was not strict there may be values that do not fit; servers replace these differently.
        lenient = session.is_lenient and _can_write_values(source, target, session, dialect)
        return _BY_VALUES if lenient else _choose_as_tidb(name, source, target, session, dialect)
    if dialect != "tidb" and _is_alike(source, target) and not session.is_lenient:
        return _ITSELF
    raise Unmappable(
        f"values of {target.name} from {source.type_text} to {target.type_text}, which {session.family} and {dialect}"
        " convert differently"
    )


def _is_alike(source: ColumnInfo, target: ColumnInfo) -> bool:
    former, now = find_type_group(source), find_type_group(target)
    fraction = (former, now) in _WHOLE and source.fsp > 0
    return now in ALIKE.get(former, "").split() and not fraction


def converts_as_tidb(source: ColumnInfo, target: ColumnInfo, session: SourceSession) -> bool:
    """Whether the family of `session` converts the pair of types as TiDB does, for all values that fit."""
    family: Dialect = "mysql" if session.family == "mysql" else "mariadb"
    pair = find_type_group(source), find_type_group(target)
    if pair[0] == "json" or not knows_pair(source, target):
        # Each has its own text of a document: its order of keys, and in MariaDB the text as it was given.
        return False
    if family == "mysql" and pair in _AS_TIDB_IN_MYSQL:
        return True
    if pair == ("text", "json"):
        return family == "mysql"
    try:
        return not cast_expression("c", source, target, session, family)
    except Unmappable:
        return False


def _choose_as_tidb(name: str, source: ColumnInfo, target: ColumnInfo, session: SourceSession, dialect: Dialect) -> Way:
    try:
        return Way(cast_expression(name, source, target, session, dialect))
    except Unmappable:
        if not _can_write_values(source, target, session, dialect):
            raise
        return _BY_VALUES


def _can_write_values(source: ColumnInfo, target: ColumnInfo, session: SourceSession, dialect: Dialect) -> bool:
    """Whether `codec.casts` knows the pair, and everything of the session that the values depend on is known."""
    read_as_other_bytes = session.guessed and find_type_group(target) == "binary"
    zoned = needs_zone(source, target) and session.tz is None
    dayless = needs_day(source, target) and session.date is None
    return dialect != "tidb" and knows_pair(source, target) and not (read_as_other_bytes or zoned or dayless)
