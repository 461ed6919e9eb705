"""Rows that wait until all tables that share a target have a DDL: DM's pessimistic mode.

Rule: the target has the definition that all tables of a group have reached. Rows that a table wrote after a DDL that
another table lacks are held. They are released by the DDL of the last table that follows. Holds are part of the merge
manifest, so all later stages, and every rerun, see the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from binlake import tso
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rows.schema.info import SOURCE_KEY

Name = tuple[str, str]
OPEN = 0
"""The end of a hold that has not ended yet."""
NEVER = (1 << 63) - 1
"""Instead of a commit_ts, for rows that are never released: no table of their target exists any more."""


@dataclass(frozen=True)
class Hold:
    """Rows of `source` with since <= commit_ts < `until` (OPEN: no end) wait until the DDL of `commit_ts` can run.

    `released`: the commit_ts at which they are released (OPEN: they wait). `before` and `after`: the table's
    definitions around the DDL; `sql`: its text for the target; `filled`: values of the columns that the rows lack in
    the definition with which they are released. `created`: the table was created with the result of the DDL, as by a
    full load after it, so it has no earlier rows.
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
    created: bool = False

    @property
    def waits(self) -> bool:
        """True while its rows are not at the target."""
        return self.released == OPEN

    def compute_end(self, hi: int) -> int:
        """The end of the hold's rows (exclusive), at most `hi` + 1."""
        return min(end or hi + 1 for end in (self.until, self.released))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        numbers = {name: str(getattr(self, name)) for name in ("since", "commit_ts", "until", "released")}
        tables = {"before": _encode_table(self.before), "after": _encode_table(self.after)}
        created = {"created": True} if self.created else {}
        return {"target": list(self.target), "source": list(self.source), "sql": self.sql, "filled": dict(self.filled),
                **numbers, **tables, **created}  # fmt: skip

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Hold:
        """Parse what `to_dict` wrote."""
        names: list[Name] = [(raw[key][0], raw[key][1]) for key in ("target", "source")]
        tables = [_decode_table(raw[key]) for key in ("before", "after")]
        ends = [int(raw[key]) for key in ("until", "released")]
        return cls(
            names[0], names[1], int(raw["since"]), int(raw["commit_ts"]), str(raw["sql"]), tables[0], tables[1],
            ends[0], ends[1], dict(raw["filled"]), bool(raw.get("created")),
        )  # fmt: skip


@dataclass(frozen=True)
class PassedOver:
    """The table `source` is treated as having the target's definition from `since` until it really has it (`until`).

    This follows an operator's command to continue without it; or the table was `created`, as by a full load, before it
    had a DDL of the others. `table`: that definition.
    """

    target: Name
    source: Name
    since: int
    table: TableDef
    until: int = OPEN
    created: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        created = {"created": True} if self.created else {}
        return {"target": list(self.target), "source": list(self.source), "since": str(self.since),
                "until": str(self.until), "table": _encode_table(self.table), **created}  # fmt: skip

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PassedOver:
        """Parse what `to_dict` wrote."""
        names: list[Name] = [(raw[key][0], raw[key][1]) for key in ("target", "source")]
        table, until = _decode_table(raw["table"]), int(raw["until"])
        return cls(names[0], names[1], int(raw["since"]), table, until, bool(raw.get("created")))


@dataclass(frozen=True)
class Locks:
    """All holds within a range of commit_ts."""

    holds: tuple[Hold, ...] = ()
    passed: tuple[PassedOver, ...] = ()

    def list_waiting(self, hi: int) -> list[dict[str, str]]:
        """The target tables with waiting rows at `hi`, for JSON: the rows' tables, since when and how many seconds."""
        first: dict[Name, Hold] = {}
        held: dict[Name, set[str]] = {}
        for hold in sorted((hold for hold in self.holds if hold.waits), key=lambda hold: hold.since):
            first.setdefault(hold.target, hold)
            held.setdefault(hold.target, set()).add(".".join(hold.source))
        return [
            {
                "table": ".".join(target),
                "since": str(hold.since),
                "seconds": f"{max(_compute_age_s(hold.since, hi), 0):.0f}",
                "held": ", ".join(sorted(held[target])),
            }
            for target, hold in first.items()
        ]

    def list_alerts(self, lo: int, hi: int, most_s: int) -> list[str]:
        """A message for each target whose wait exceeded `most_s` seconds in the window (lo, hi]; 0 = no messages."""
        first: dict[Name, Hold] = {}
        for hold in sorted(self.holds, key=lambda hold: hold.since):
            if hold.waits:
                first.setdefault(hold.target, hold)
        overdue = [
            hold for hold in first.values() if _compute_age_s(hold.since, lo) <= most_s < _compute_age_s(hold.since, hi)
        ]
        return [
            f"rows of {'.'.join(hold.source)} wait since {hold.since} for the other tables of {'.'.join(hold.target)}:"
            " `binlake ddl lock`"
            for hold in overdue
            if most_s
        ]

    def __bool__(self) -> bool:
        return bool(self.holds or self.passed)

    @property
    def still_open(self) -> Locks:
        """The holds that still wait after the range."""
        return Locks(
            tuple(hold for hold in self.holds if hold.waits),
            tuple(table for table in self.passed if table.until == OPEN),
        )

    def list_definitions_at(self, ts: int) -> dict[Name, TableDef]:
        """The target's definitions of held and passed-over source tables at `ts`, by their names in lower case."""
        definitions = {
            fold_pair(passed.source): passed.table
            for passed in self.passed
            if passed.since <= ts and (passed.until == OPEN or ts < passed.until)
        }
        first: dict[int, Hold] = {}
        for hold in sorted(self.holds, key=lambda hold: hold.since):
            if hold.since <= ts and (hold.waits or ts < hold.released):
                earliest = first.setdefault(hold.after.id, hold)
                if hold.until == OPEN or ts < hold.until:
                    definitions[fold_pair(hold.source)] = earliest.before
        return definitions

    def list_held_tables(self, ts: int) -> set[Name]:
        """The names of the source tables whose rows of `ts` are held, even if they were released later."""
        return {hold.source for hold in self.holds if hold.since <= ts < hold.compute_end(ts)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; empty without holds."""
        values = {
            "holds": [hold.to_dict() for hold in self.holds],
            "passed": [table.to_dict() for table in self.passed],
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Locks:
        """Parse what `to_dict` wrote."""
        holds = tuple(Hold.from_dict(item) for item in raw.get("holds", ()))
        return cls(holds, tuple(PassedOver.from_dict(item) for item in raw.get("passed", ())))

    @classmethod
    def join(cls, parts: Iterable[Locks]) -> Locks:
        """Join the locks of consecutive windows. A hold in several windows has its last state."""
        holds: dict[tuple[Name, int, int], Hold] = {}
        passed: dict[tuple[Name, int], PassedOver] = {}
        for part in parts:
            holds |= {(hold.source, hold.since, hold.commit_ts): hold for hold in part.holds}
            passed |= {(table.source, table.since): table for table in part.passed}
        return cls(tuple(holds.values()), tuple(passed.values()))


@dataclass(frozen=True)
class Resolution:
    """An operator's command to continue `without` some source tables. `sql`: the statement (empty: the shards')."""

    target: Name
    without: tuple[Name, ...]
    sql: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"target": list(self.target), "without": [list(name) for name in self.without], "sql": self.sql}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Resolution:
        """Parse what `to_dict` wrote."""
        names = tuple((name[0], name[1]) for name in raw["without"])
        return cls((raw["target"][0], raw["target"][1]), names, str(raw["sql"]))


def as_table(definition: TableDef, table: TableDef) -> TableDef:
    """A definition with the columns and keys of `definition`, and the id and name of `table`."""
    if (definition.id, definition.db, definition.name) == (table.id, table.db, table.name):
        return definition
    identity = {key: table.raw[key] for key in ("id", "name", SOURCE_KEY) if key in table.raw}
    return TableDef.from_json({**definition.raw, **identity}, DbInfo(table.db_id, table.db, "", "", {}))


def format_names(names: Sequence[Name]) -> str:
    """The names of tables, for people."""
    return ", ".join(".".join(name) for name in names)


def _compute_age_s(since: int, ts: int) -> float:
    return (tso.extract_physical(ts) - tso.extract_physical(since)) / 1000


def _encode_table(table: TableDef) -> dict[str, Any]:
    return {"db_id": table.db_id, "db": table.db, "info": table.raw}


def _decode_table(raw: Mapping[str, Any]) -> TableDef:
    return TableDef.from_json(raw["info"], DbInfo(raw["db_id"], raw["db"], "", "", {}))
