"""Partitions that a DDL removes or rearranges, and the rows that transactions of older schema versions still write.

Removed (`Emptied`; DROP, TRUNCATE, EXCHANGE PARTITION): TiDB works with two schema versions at the same time. A
transaction of the older version that commits after the DDL's first step writes into the old partition, which is then
removed with its rows; the binlog names only the logical table (captures `zones`, table `Teile`). A transaction that
began at a version at which the partition is no longer written did not write there. For an earlier transaction, the
primary key of its prewrite tells, because it names the physical table. So a row is removed if its values belong to the
partition and its transaction wrote there. If that cannot be determined, Binlake raises an error. An exchanged partition
lives on as the plain table, with such rows (tables `Monat` and `Tausch`).

Rearranged (`Reorganized`; TiDB v7.5; captures `zones`, table `Tagebuch`, which has no key): the job takes five schema
versions; N, the last, is the job's version. From N-4 on, deletes and the former rows of updates go to the new
partitions too. From N-3 to N-1 every change does, at N-1 to the new partitions first. Each second write is in the
binlog. A transaction has the schema version of its BEGIN, but uses a table as it is when it first touches it: its step
is that of its version or a later one, but not one that began after its commit. Jobs of other tables in between can only
make the step later.

The second write of an insert gets a separate row id. If the row is also copied, which happens if it was committed
before the copy began, the source has the row twice afterwards, as logged (pingcap/tidb#57510). If it was committed
while rows were copied, nothing shows whether it was copied. PARTITION BY and REMOVE PARTITIONING take the same steps,
but no capture shows them; for a job that was rolled back, nothing shows which steps it took.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias

from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import Action, DdlJob

Values = Mapping[str, str | None]

Side: TypeAlias = Literal["old", "new", "not its own", "unknown"]
"""A transaction's side of the DDL: it wrote into the old partitions ("old"), into the new ones ("new"), or into other
partitions of the table, as far as its primary key tells ("not its own"); or it cannot be determined ("unknown")."""

_KEY_HEAD = 9
_RANGE, _HASH, _LIST = 1, 2, 3
_MAXVALUE = "MAXVALUE"
_TO_DAYS_OF_YEAR_ONE = 365
HASHED_NULL_KEY = "hashed_null"
"""The key of a partitioning for the number as which its server hashes NULL; without it, TiDB's 0."""
HINT = (
    "set source.partition-rows = removed, which takes such rows to have gone with the partition, run merge again, and"
    " compare the table with the source afterwards (binlake verify --against source --fix). Or check which of the"
    " transaction's rows exist on the source, list its commit_ts in filter.ignore-txn-commit-ts, which leaves out the"
    " whole transaction, and write the existing rows to the target by hand"
)
_EXPRESSION = re.compile(r"(?:(\w+)\()?`([^`]+)`\)?")
Json = Mapping[str, Any]
BEFORE, DELETE_ONLY, WRITE_ONLY, COPYING, SWITCHED, AFTER = range(-5, 1)
"""Steps of such a DDL: the schema version at the step minus the job's version."""
REARRANGING = frozenset({Action.REORGANIZE_PARTITION, Action.PARTITION_BY, Action.REMOVE_PARTITIONING})
"""The kinds of jobs that take these steps. TiDB logs ADD and COALESCE PARTITION of a hash as the first kind."""


@dataclass(frozen=True)
class Emptied:
    """The removed partitions `ids` of `partition` (TableInfo's, before the DDL).

    Transactions from schema `version` on do not write into them. `heir`: the id of the table that the exchanged
    partition has become; 0 if the partition's rows are gone. `side`: the side of the current transaction; `written`: if
    that is "not its own", the partition that its primary key names.
    """

    version: int
    ids: frozenset[int]
    partition: Mapping[str, Any]
    heir: int = 0
    side: Side = "unknown"
    written: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON value for a schema snapshot."""
        return {"version": self.version, "ids": sorted(self.ids), "partition": self.partition, "heir": self.heir}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Emptied | None:
        """Parse what `to_json` wrote; None gives None."""
        if raw is None:
            return None
        return cls(raw["version"], frozenset(raw["ids"]), raw["partition"], raw.get("heir", 0))

    def find_side(self, primary_key: bytes, now: Collection[int], others: Collection[int]) -> Side:
        """A transaction's side, from its raw `primary_key`; `now`: ids of the table's partitions after the DDL.

        `others`: ids of the other tables that the transaction changes. The primary key may belong to one of them: the
        plain table of an EXCHANGE has the id of a partition, before or after it.
        """
        written = decode_physical_id(primary_key)
        if written in others:
            return "unknown"
        if written in self.ids:
            return "old"
        before = {definition["id"] for definition in self.partition["definitions"]}
        if written in now and written not in before:
            return "new"
        return "not its own" if written in now else "unknown"

    def holds(self, row: Values, types: Mapping[str, int]) -> bool:
        """Whether `row` belongs to the removed partitions. `types`: TiDB's type number by column. Raises
        SchemaError."""
        return find_partition(self.partition, row, types) in self.ids


def find_partition(partition: Mapping[str, Any], row: Values, types: Mapping[str, int]) -> int:
    """The id of the partition of `row`, 0 if no partition takes it; NULL is in the lowest range.

    `partition`: TableInfo's. Raises SchemaError if the partition cannot be determined.
    """
    find = _FINDERS.get(partition["type"])
    if find is None:
        raise _build_unknown_error(partition, "its kind of partitioning is not evaluated")
    try:
        value = _compute_partitioning_value(partition, row, types)
        if find is _find_id_by_hash and value[0] is None:
            value = [partition.get(HASHED_NULL_KEY, 0)]
        return find(value, partition["definitions"])
    except (KeyError, ValueError) as error:
        # Not the error itself, neither as the cause: it may quote a value of the row.
        raise _build_unknown_error(partition, f"it cannot be evaluated ({type(error).__name__})") from None


def _find_id_by_range(value: Sequence[Any], definitions: Sequence[Mapping[str, Any]]) -> int:
    for definition in definitions:
        bounds = [_parse_bound(text, like) for text, like in zip(definition["less_than"], value, strict=True)]
        if _is_less(value, bounds):
            return int(definition["id"])
    return 0


def _find_id_by_list(value: Sequence[Any], definitions: Sequence[Mapping[str, Any]]) -> int:
    default = 0
    for definition in definitions:
        for texts in definition["in_values"] or ():
            if texts[0].upper() == "DEFAULT":
                default = int(definition["id"])
            elif all(_is_listed(own, text) for own, text in zip(value, texts, strict=True)):
                return int(definition["id"])
    return default


def _is_listed(own: Any, text: str) -> bool:
    if own is None or text.upper() == "NULL":
        return own is None and text.upper() == "NULL"
    return bool(_parse_bound(text, own) == own)


def _find_id_by_hash(value: Sequence[Any], definitions: Sequence[Mapping[str, Any]]) -> int:
    # The servers compute with signed numbers of 64 bits.
    number = (int(value[0]) + (1 << 63)) % (1 << 64) - (1 << 63)
    return int(definitions[abs(number) % len(definitions)]["id"])


_FINDERS = {_RANGE: _find_id_by_range, _LIST: _find_id_by_list, _HASH: _find_id_by_hash}


def decode_physical_id(key: bytes) -> int:
    """The table id in a raw TiDB key (`t` and a big-endian number with flipped sign bit); 0 for any other key."""
    if len(key) < _KEY_HEAD or key[:1] != b"t":
        return 0
    return int.from_bytes(key[1:_KEY_HEAD], "big") - (1 << 63)


def _is_less(value: Sequence[Any], bounds: Sequence[Any]) -> bool:
    for own, bound in zip(value, bounds, strict=True):
        if bound is _MAXVALUE or own is None:
            return True
        if own != bound:
            return bool(own < bound)
    return False


def _compute_partitioning_value(partition: Mapping[str, Any], row: Values, types: Mapping[str, int]) -> list[Any]:
    names = [_find_column(column["L"], types) for column in partition.get("columns") or ()]
    if names:
        return [_parse_value(row[name], types[name]) for name in names]
    return [_evaluate(partition["expr"], row, types)]


def _find_column(folded: str, types: Mapping[str, int]) -> str:
    """The column of that name, in any letter case. Raises KeyError: a virtual column has no values in a log."""
    name = next((name for name in types if name.lower() == folded), None)
    if name is None:
        raise KeyError(folded)
    return name


def _parse_value(text: str | None, tp: int) -> Any:
    """Parse a text to a value that compares like the partitioning's bounds: a number or a datetime; others are
    refused."""
    if text is None:
        return None
    if tp in t.INTEGERS or tp == t.YEAR:
        return int(text)
    if tp in t.DATES | t.MOMENTS:
        return datetime.fromisoformat(text)
    raise ValueError(f"column of type {tp}")


def _parse_bound(text: str, like: Any) -> Any:
    if text.upper() == _MAXVALUE or like is None:
        return _MAXVALUE
    plain = text[1:-1] if text[:1] in "'\"" else text
    return datetime.fromisoformat(plain) if isinstance(like, datetime) else int(plain)


def _count_days(moment: datetime) -> int:
    return date.toordinal(moment) + _TO_DAYS_OF_YEAR_ONE


def _compute_unix_seconds(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp())


_FUNCTIONS: dict[str, tuple[Callable[[datetime], int], frozenset[int]]] = {
    "year": (lambda moment: moment.year, t.DATES | {t.DATETIME}),
    "to_days": (_count_days, t.DATES | {t.DATETIME}),
    "unix_timestamp": (_compute_unix_seconds, frozenset({t.TIMESTAMP})),
}


def _evaluate(expression: str, row: Values, types: Mapping[str, int]) -> Any:
    """Evaluate a column, or one of the functions that partitioning by time uses."""
    match = _EXPRESSION.fullmatch(expression.strip())
    if match is None:
        raise ValueError(f"expression {expression}")
    function, column = (match[1] or "").lower(), match[2]
    name = _find_column(column.lower(), types)
    value = _parse_value(row[name], types[name])
    if not function or value is None:
        return value
    evaluate, fitting = _FUNCTIONS[function]
    if types[name] not in fitting:
        raise ValueError(f"{function} of a column of type {types[name]}")
    return evaluate(value)


def _build_unknown_error(partition: Mapping[str, Any], why: str) -> SchemaError:
    return SchemaError(
        f"a row may have been removed with a dropped, truncated or exchanged partition: {why}",
        where={"partitioning": partition.get("expr") or [c["O"] for c in partition.get("columns") or ()]},
        hint=HINT,
    )


@dataclass(frozen=True)
class Reorganized:
    """A DDL of schema `version` rearranged the partitions of a table without a key from `old` to `new` (of TableInfo).

    Rows with a commit_ts below `copied_ts` were committed before the copy began, rows below `until_ts` before the last
    step. `known`: the DDL took effect, and its steps are those of the rule.
    """

    version: int
    copied_ts: int
    until_ts: int
    known: bool
    old: Json | None
    new: Json | None

    def to_json(self) -> dict[str, Any]:
        """For a snapshot of the schema."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Json | None) -> Reorganized | None:
        """What `to_json` wrote; None for None."""
        return None if raw is None else cls(**raw)

    def find_steps(self, version: int, commit_ts: int, written: int) -> range:
        """The steps at which a transaction of schema `version` may have written; `written`: a partition it wrote
        into."""
        if not self.known:
            return range(BEFORE, AFTER + 1)
        last = COPYING if commit_ts < self.copied_ts else AFTER
        if last == AFTER and (commit_ts < self.until_ts or written in _list_ids(self.old) - _list_ids(self.new)):
            last = SWITCHED
        return range(max(version - self.version, BEFORE), last + 1)

    def find_place(self, step: int, row: Values, types: Mapping[str, int]) -> tuple[int, bool | None]:
        """(id of the partition of `row` at `step`, whether it is one of the rearranged ones).

        The id is 0 if it cannot be determined, and the second value None if that cannot be determined.
        """
        current, other = (self.new, self.old) if step >= SWITCHED else (self.old, self.new)
        ids = _list_ids(current)
        rearranged = ids - _list_ids(other)
        try:
            partition_id = find_partition(current, row, types) if current is not None and ids else 0
        except SchemaError:
            return 0, True if rearranged == ids else None
        return partition_id, not ids or partition_id in rearranged


def build_reorganized(job: DdlJob, commit_ts: int, old: Json | None) -> Reorganized:
    """The Reorganized of `job`, whose binlog is at `commit_ts` (0: not known), for a table whose TableInfo was
    `old`."""
    known = job.took_effect and job.type == Action.REORGANIZE_PARTITION
    new = (job.table_info or {}).get("partition") if job.took_effect else None
    # A job that is not placed at its binlog is at its FinishedTS, which is after its last step.
    until = commit_ts if commit_ts < job.finished_ts else job.ready_ts
    return Reorganized(job.schema_version, job.ready_ts, until, known, (old or {}).get("partition"), new)


def _list_ids(partition: Json | None) -> frozenset[int]:
    return frozenset(definition["id"] for definition in (partition or {}).get("definitions") or ())
