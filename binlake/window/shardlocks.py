"""What waits of tables that share a target until all of them have a DDL: DM's pessimistic mode.

Rule: the target has the definition that all tables of a group have reached. Rows that a table wrote behind a DDL that
another one lacks are held; they count as of the DDL with which the last one followed. A hold is a value of the merge
manifest, so every stage behind merge, and every rerun, sees the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from binlake import tso
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema.info import SOURCE_KEY
from binlake.rows.schema.names import fold_pair

Name = tuple[str, str]
OPEN = 0
"""The end of a hold that has none yet."""
NEVER = (1 << 63) - 1
"""The place of rows that never count: their table and all others of its target are gone."""


@dataclass(frozen=True)
class Hold:
    """Rows of `source` with since <= commit_ts < `until` (OPEN: none) wait for the DDL of `commit_ts`, or for what it
    waits for. `released`: the place from which they count (OPEN: they wait).

    `before` and `after` are the table's definitions around the DDL, `sql` its text for the target; `shown`: what the
    target has of it meanwhile. `filled`: columns that the rows lack of the definition with which they are released.
    """

    target: Name
    source: Name
    since: int
    commit_ts: int
    sql: str
    before: TableDef
    after: TableDef
    until: int = OPEN
    released: int = OPEN
    filled: Mapping[str, str] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Its rows are not at the target yet."""
        return self.released == OPEN

    def ends(self, hi: int) -> int:
        """The end of its rows, as far as `hi`."""
        return min(end or hi + 1 for end in (self.until, self.released))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        numbers = {name: str(getattr(self, name)) for name in ("since", "commit_ts", "until", "released")}
        tables = {"before": _table_to_dict(self.before), "after": _table_to_dict(self.after)}
        return {"target": list(self.target), "source": list(self.source), "sql": self.sql, "filled": dict(self.filled),
                **numbers, **tables}  # fmt: skip

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Hold:
        """The hold of `to_dict`."""
        names: list[Name] = [(raw[key][0], raw[key][1]) for key in ("target", "source")]
        tables = [_table_of_dict(raw[key]) for key in ("before", "after")]
        ends = [int(raw[key]) for key in ("until", "released")]
        return cls(
            names[0], names[1], int(raw["since"]), int(raw["commit_ts"]), str(raw["sql"]), tables[0], tables[1],
            ends[0], ends[1], dict(raw["filled"]),
        )  # fmt: skip


@dataclass(frozen=True)
class PassedOver:
    """The table `source` counts as one that has the target's definition, from `since` on until it has (`until`).

    An operator went on without it; `table` is that definition.
    """

    target: Name
    source: Name
    since: int
    table: TableDef
    until: int = OPEN

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"target": list(self.target), "source": list(self.source), "since": str(self.since),
                "until": str(self.until), "table": _table_to_dict(self.table)}  # fmt: skip

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PassedOver:
        """That of `to_dict`."""
        names: list[Name] = [(raw[key][0], raw[key][1]) for key in ("target", "source")]
        return cls(names[0], names[1], int(raw["since"]), _table_of_dict(raw["table"]), int(raw["until"]))


@dataclass(frozen=True)
class Locks:
    """All that was held at some place of a range of commit_ts."""

    holds: tuple[Hold, ...] = ()
    passed: tuple[PassedOver, ...] = ()

    def waiting(self, hi: int) -> list[dict[str, str]]:
        """Whose rows wait at `hi`, a line for each target table, for JSON: since when, and for how many seconds."""
        first: dict[Name, Hold] = {}
        held: dict[Name, set[str]] = {}
        for hold in sorted((hold for hold in self.holds if hold.waits), key=lambda hold: hold.since):
            first.setdefault(hold.target, hold)
            held.setdefault(hold.target, set()).add(".".join(hold.source))
        return [
            {"table": ".".join(target), "since": str(hold.since), "seconds": f"{max(_age_s(hold.since, hi), 0):.0f}",
             "held": ", ".join(sorted(held[target]))}
            for target, hold in first.items()
        ]  # fmt: skip

    def alerts(self, lo: int, hi: int, most_s: int) -> list[str]:
        """The targets that in the window (lo, hi] came to wait for longer than `most_s`, for people; 0 = never."""
        first: dict[Name, Hold] = {}
        for hold in sorted(self.holds, key=lambda hold: hold.since):
            if hold.waits:
                first.setdefault(hold.target, hold)
        found = [hold for hold in first.values() if _age_s(hold.since, lo) <= most_s < _age_s(hold.since, hi)]
        return [
            f"rows of {'.'.join(hold.source)} wait since {hold.since} for the other tables of {'.'.join(hold.target)}:"
            " `binlake ddl lock`"
            for hold in found
            if most_s
        ]

    def __bool__(self) -> bool:
        return bool(self.holds or self.passed)

    @property
    def still_open(self) -> Locks:
        """What goes on behind the range."""
        return Locks(
            tuple(hold for hold in self.holds if hold.waits), tuple(one for one in self.passed if one.until == OPEN)
        )

    def shown(self, ts: int) -> dict[Name, TableDef]:
        """The definitions that tables of the source have for the target at `ts`, by their names in lower case."""
        found = {
            fold_pair(one.source): one.table
            for one in self.passed
            if one.since <= ts and (one.until == OPEN or ts < one.until)
        }
        first: dict[int, Hold] = {}
        for hold in sorted(self.holds, key=lambda hold: hold.since):
            if hold.since <= ts and (hold.waits or ts < hold.released):
                earliest = first.setdefault(hold.after.id, hold)
                if hold.until == OPEN or ts < hold.until:
                    found[fold_pair(hold.source)] = earliest.before
        return found

    def held(self, ts: int) -> set[Name]:
        """The tables of the source, by their names, whose rows of `ts` are held, or were until later."""
        return {hold.source for hold in self.holds if hold.since <= ts < hold.ends(ts)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; nothing when nothing is held."""
        found = {"holds": [hold.to_dict() for hold in self.holds], "passed": [one.to_dict() for one in self.passed]}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Locks:
        """The locks of `to_dict`."""
        holds = tuple(Hold.from_dict(one) for one in raw.get("holds", ()))
        return cls(holds, tuple(PassedOver.from_dict(one) for one in raw.get("passed", ())))

    @classmethod
    def joined(cls, parts: Iterable[Locks]) -> Locks:
        """Those of windows one behind the other: of a hold that goes through several, the last word."""
        holds: dict[tuple[Name, int, int], Hold] = {}
        passed: dict[tuple[Name, int], PassedOver] = {}
        for part in parts:
            holds |= {(hold.source, hold.since, hold.commit_ts): hold for hold in part.holds}
            passed |= {(one.source, one.since): one for one in part.passed}
        return cls(tuple(holds.values()), tuple(passed.values()))


@dataclass(frozen=True)
class Resolution:
    """An operator's command to go on: `without` these tables of the source, running `sql` (empty: the shards' own)."""

    target: Name
    without: tuple[Name, ...]
    sql: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"target": list(self.target), "without": [list(name) for name in self.without], "sql": self.sql}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Resolution:
        """That of `to_dict`."""
        names = tuple((name[0], name[1]) for name in raw["without"])
        return cls((raw["target"][0], raw["target"][1]), names, str(raw["sql"]))


def as_table(definition: TableDef, table: TableDef) -> TableDef:
    """The columns and keys of `definition` as those of `table`."""
    if (definition.id, definition.db, definition.name) == (table.id, table.db, table.name):
        return definition
    own = {key: table.raw[key] for key in ("id", "name", SOURCE_KEY) if key in table.raw}
    return TableDef.from_json({**definition.raw, **own}, DbInfo(table.db_id, table.db, "", "", {}))


def named(names: Sequence[Name]) -> str:
    """Tables for people."""
    return ", ".join(".".join(name) for name in names)


def _age_s(since: int, ts: int) -> float:
    return (tso.physical(ts) - tso.physical(since)) / 1000


def _table_to_dict(table: TableDef) -> dict[str, Any]:
    return {"db_id": table.db_id, "db": table.db, "info": table.raw}


def _table_of_dict(raw: Mapping[str, Any]) -> TableDef:
    return TableDef.from_json(raw["info"], DbInfo(raw["db_id"], raw["db"], "", "", {}))
