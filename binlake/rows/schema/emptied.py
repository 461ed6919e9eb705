"""Partitions that DROP, TRUNCATE, EXCHANGE PARTITION took away, for the rows that are written into them all the same.

Rule: TiDB keeps two schema versions at work. A transaction of the older one that commits behind the DDL's first step
writes into the old partition, which goes with its rows; the binlog names the logical table only (captures `zones`,
table `Teile`). A transaction that began with a version from which the partition is not written to any more did not; of
an earlier one the primary key of its prewrite shows it, for it names the physical table. So a row goes if its values
belong into the partition and its transaction wrote there. What cannot be determined is refused. A partition that was
exchanged goes on as the plain table, and such a row with it (tables `Monat` and `Tausch`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t

Values = Mapping[str, str | None]

Side: TypeAlias = Literal["old", "new", "not its own", "unknown"]
"""A transaction's side of the DDL: it wrote into the old partitions; into the new ones; into others of the table, and
into that table alone; or nothing tells."""

_KEY_HEAD = 9
_RANGE, _HASH, _LIST = 1, 2, 3
_MAXVALUE = "MAXVALUE"
_TO_DAYS_OF_YEAR_ONE = 365
HINT = (
    "look where its rows are on the source, name its commit_ts in filter.ignore-txn-commit-ts, which leaves the whole"
    " transaction out, and write the rows that exist there by hand"
)


@dataclass(frozen=True)
class Emptied:
    """Partitions `ids` of `partition` (TableInfo's, before the DDL); transactions from schema `version` on spare them.

    `heir`: the id of the table that the partition was exchanged for and is now; 0 where its rows are gone.
    `side`: what is known of the transaction at hand.
    """

    version: int
    ids: frozenset[int]
    partition: Mapping[str, Any]
    heir: int = 0
    side: Side = "unknown"

    def to_json(self) -> dict[str, Any]:
        """For a snapshot of the schema."""
        return {"version": self.version, "ids": sorted(self.ids), "partition": self.partition, "heir": self.heir}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Emptied | None:
        """What `to_json` wrote; None for None."""
        if raw is None:
            return None
        return cls(raw["version"], frozenset(raw["ids"]), raw["partition"], raw.get("heir", 0))

    def side_of(self, primary_key: bytes, now: Collection[int], others: Collection[int]) -> Side:
        """What `primary_key` (raw) of a transaction shows; `now`: ids of the table's partitions after the DDL.

        `others`: ids of the other tables that the transaction changes. One may have the key that is looked at: the
        plain table of an EXCHANGE has the id of a partition, before it and after it.
        """
        written = physical_id(primary_key)
        if written in others:
            return "unknown"
        if written in self.ids:
            return "old"
        before = {definition["id"] for definition in self.partition["definitions"]}
        if written in now and written not in before:
            return "new"
        return "not its own" if written in now and not others else "unknown"

    def holds(self, row: Values, types: Mapping[str, int]) -> bool:
        """Whether the partitions held `row`. `types`: TiDB's type number by column. Raises SchemaError."""
        return partition_of(self.partition, row, types) in self.ids


def partition_of(partition: Mapping[str, Any], row: Values, types: Mapping[str, int]) -> int:
    """The id of the partition of `row`, 0 for none; a NULL is in the least range. `partition`: TableInfo's.

    Raises SchemaError when it cannot be determined.
    """
    kind, definitions = partition["type"], partition["definitions"]
    names = [column["O"] for column in partition.get("columns") or ()]
    value = _value_of(partition, names, row, types)
    if kind == _RANGE:
        return _id_by_range(value, definitions)
    if kind == _LIST and len(value) == 1:
        return _id_by_list(value[0], definitions)
    if kind == _HASH:
        return int(definitions[abs(int(value[0] or 0)) % len(definitions)]["id"])
    raise _unknown(partition, "its kind of partitioning is not evaluated")


def _id_by_range(value: Sequence[Any], definitions: Sequence[Mapping[str, Any]]) -> int:
    for definition in definitions:
        bounds = [_bound(text, like) for text, like in zip(definition["less_than"], value, strict=True)]
        if _less(value, bounds):
            return int(definition["id"])
    return 0


def _id_by_list(value: Any, definitions: Sequence[Mapping[str, Any]]) -> int:
    default = 0
    for definition in definitions:
        for (text,) in definition["in_values"] or ():
            if text.upper() == "DEFAULT":
                default = int(definition["id"])
            elif (None if text.upper() == "NULL" else _bound(text, value)) == value:
                return int(definition["id"])
    return default


def physical_id(key: bytes) -> int:
    """The table id in a raw key of TiDB, `t` and a big-endian number with its sign bit turned; 0 for no such key."""
    if len(key) < _KEY_HEAD or key[:1] != b"t":
        return 0
    return int.from_bytes(key[1:_KEY_HEAD], "big") - (1 << 63)


def _less(value: Sequence[Any], bounds: Sequence[Any]) -> bool:
    for own, bound in zip(value, bounds, strict=True):
        if bound is _MAXVALUE or own is None:
            return True
        if own != bound:
            return bool(own < bound)
    return False


def _value_of(partition: Mapping[str, Any], names: Sequence[str], row: Values, types: Mapping[str, int]) -> list[Any]:
    try:
        if names:
            return [_typed(row[name], types[name]) for name in names]
        return [_evaluated(partition["expr"], row, types)]
    except (KeyError, ValueError) as error:
        raise _unknown(partition, f"it cannot be evaluated ({error!r})") from error


def _typed(text: str | None, tp: int) -> Any:
    """A value that compares as the partitioning's: numbers, dates and times as such; texts are refused."""
    if text is None:
        return None
    if tp in t.INTEGERS or tp == t.YEAR:
        return int(text)
    if tp in t.DATES | t.MOMENTS:
        return datetime.fromisoformat(text)
    raise ValueError(f"column of type {tp}")


def _bound(text: str, like: Any) -> Any:
    if text.upper() == _MAXVALUE or like is None:
        return _MAXVALUE
    plain = text[1:-1] if text[:1] in "'\"" else text
    return datetime.fromisoformat(plain) if isinstance(like, datetime) else int(plain)


def _days(moment: datetime) -> int:
    return date.toordinal(moment) + _TO_DAYS_OF_YEAR_ONE


def _unix(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp())


_FUNCTIONS: dict[str, tuple[Callable[[datetime], int], frozenset[int]]] = {
    "year": (lambda moment: moment.year, t.DATES | {t.DATETIME}),
    "to_days": (_days, t.DATES | {t.DATETIME}),
    "unix_timestamp": (_unix, frozenset({t.TIMESTAMP})),
}
_EXPRESSION = re.compile(r"(?:(\w+)\()?`([^`]+)`\)?")


def _evaluated(expression: str, row: Values, types: Mapping[str, int]) -> Any:
    """The value of a column, or of one of the functions that partitioning by time uses."""
    found = _EXPRESSION.fullmatch(expression.strip())
    if found is None:
        raise ValueError(f"expression {expression}")
    function, column = (found[1] or "").lower(), found[2]
    name = next(name for name in types if name.lower() == column.lower())
    value = _typed(row[name], types[name])
    if not function or value is None:
        return value
    evaluate, fitting = _FUNCTIONS[function]
    if types[name] not in fitting:
        raise ValueError(f"{function} of a column of type {types[name]}")
    return evaluate(value)


def _unknown(partition: Mapping[str, Any], why: str) -> SchemaError:
    return SchemaError(
        f"a row may have gone with a partition that was dropped, truncated or exchanged: {why}",
        where={"partitioning": partition.get("expr") or [c["O"] for c in partition.get("columns") or ()]},
        hint=HINT,
    )
