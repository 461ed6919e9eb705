"""Answers from the lake without Spark: the history of a row, and a table as of any commit_ts (MISSION C-07).

A Delta version of a mirror is the state at a window's end or behind a DDL; between two of them the row changes in
`mutation` are exact, so every commit_ts has an answer, inside a window too (hazards R-33).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from binlake import tso
from binlake.errors import LostRange, SchemaError
from binlake.lake.dataset import dataset
from binlake.lake.ddls import landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowLog
from binlake.mirror.rows import mirror_texts
from binlake.mirror.versions import MirrorVersion, MirrorVersions
from binlake.rowchange import RowEvent, net_changes, row_key
from binlake.schema import TableDef
from binlake.window.definitions import WindowDefinitions, filled_key

Row = dict[str, str | None]
"""Column name -> canonical text."""


@dataclass(frozen=True)
class RowVersion:
    """One change of a row: `op`, its place, the images (None where there is none)."""

    commit_ts: int
    start_ts: int
    seq: int
    op: str
    before: Row | None
    after: Row | None

    def to_dict(self) -> dict[str, Any]:
        """For `--output json`: timestamps as strings, the commit's time in UTC."""
        time = tso.to_datetime(self.commit_ts).isoformat(timespec="milliseconds")
        return {**vars(self), "commit_ts": str(self.commit_ts), "start_ts": str(self.start_ts), "commit_time": time}


@dataclass(frozen=True)
class TableAsOf:
    """A table at `ts`: columns in table order, rows of canonical text by key; `inexact` as in mirror_version."""

    ts: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    inexact: str


class Audit:
    """Reads one lake."""

    def __init__(self, paths: LakePaths) -> None:
        self._paths = paths
        self._log = WindowLog(paths)

    def row_history(
        self, db: str, table: str, key: Sequence[str | None], *, after: int = -1, upto: int | None = None
    ) -> list[RowVersion]:
        """The changes of the row with `key` (texts of its identity, in order) with after < commit_ts <= upto.

        A change that moves the row to or from another key is in the history of both. Raises SchemaError for a table
        without any definition in that range.
        """
        last = self._landed() if upto is None else upto
        names = set(self._identities(db, table, after, last))
        if not names:
            raise SchemaError("the schema history does not know this table", where={"table": f"{db}.{table}"})
        events = self._mutations(db, table, after, last)
        found = [event for event in events if any(_is_key(event, columns, key) for columns in names)]
        return [RowVersion(e.commit_ts, e.start_ts, e.seq, e.op, _plain(e.before), _plain(e.after)) for e in found]

    def table_as_of(self, db: str, table: str, ts: int) -> TableAsOf:
        """The rows of the table after everything at or below `ts`. Raises LostRange or SchemaError.

        LostRange: `ts` is not landed yet, or lies before the first state that the lake has of this table.
        """
        landed = self._landed()
        if ts > landed:
            raise LostRange(
                f"the lake ends at {landed}", where={"ts": ts}, hint="wait for the next window, or ask for less"
            )
        definition = SchemaHistory(self._paths).state_at(ts).find(db, table)
        if definition is None or definition.kind != "table":
            raise SchemaError("there is no such table at that time", where={"table": f"{db}.{table}", "ts": ts})
        # Names are compared as the source does: without case.
        db, table = definition.db, definition.name
        base = MirrorVersions(self._paths).at(db, table, ts)
        if base is None or base.dropped:
            base = self._untouched(db, table)
        self._require_followed(base, ts)
        rows = self._base_rows(definition, base)
        net = net_changes(self._mutations(db, table, base.hi, ts), definition.identity(), filled_key(definition))
        changed = _patched(definition, rows, net)
        columns = tuple(column.name for column in definition.row_columns)
        return TableAsOf(ts, columns, tuple(changed), base.inexact)

    def _require_followed(self, base: MirrorVersion, ts: int) -> None:
        """No DDL of the table lies between its mirror and `ts`: else the mirrors are behind."""
        for ddl in landed_ddls(self._paths, base.hi, ts):
            if any((t.db, t.name) == (base.db, base.table) for t in (*ddl.before.tables, *ddl.after.tables)):
                raise LostRange(
                    "the table's mirror is behind a DDL before that time",
                    where={"table": f"{base.db}.{base.table}", "mirror": base.hi, "ddl": ddl.commit_ts, "ts": ts},
                    hint="run the stage mirror, then ask again",
                )

    def _untouched(self, db: str, table: str) -> MirrorVersion:
        """A table without a mirror yet: empty at the lake's start, unless the lake starts in the middle of its life."""
        first = self._log.landed()[0][0]
        return MirrorVersion(db, table, -1, first, first, inexact="rows from before the lake's start are not known")

    def _landed(self) -> int:
        landed = self._log.landed_ts()
        if landed is None:
            raise LostRange("the lake is empty", where={"lake": self._paths.root}, hint="land a first window")
        return landed

    def _base_rows(self, definition: TableDef, base: MirrorVersion) -> list[Row]:
        if base.delta_version < 0:
            return []
        at = SchemaHistory(self._paths).state_at(base.hi).find(base.db, base.table) or definition
        try:
            mirror = DeltaTable(self._paths.mirror(base.db, base.table), version=base.delta_version)
        except TableNotFoundError as error:
            raise LostRange("the mirror's version is gone", where={"table": f"{base.db}.{base.table}"}) from error
        texts = mirror_texts(at, dataset(mirror).to_table())
        names = list(texts)
        return [dict(zip(names, values, strict=True)) for values in zip(*texts.values(), strict=True)]

    def _identities(self, db: str, table: str, after: int, upto: int) -> Iterator[tuple[str, ...]]:
        """The identity columns of every definition that the table had in (after, upto]."""
        start = max(after, self._log.landed()[0][0])
        ddls = landed_ddls(self._paths, start, upto)
        definitions = WindowDefinitions(SchemaHistory(self._paths).state_at(start), ddls)
        for ts in (start, *(ddl.since for ddl in ddls)):
            found = definitions.at(db, table, ts)
            if found is not None:
                yield found.identity().columns

    def _mutations(self, db: str, table: str, lo: int, hi: int) -> list[RowEvent]:
        if hi <= lo:
            return []
        days = (ds.field("commit_date") >= _day(max(lo, 0))) & (ds.field("commit_date") <= _day(hi))
        where = days & (ds.field("commit_ts") > lo) & (ds.field("commit_ts") <= hi)
        where &= (ds.field("db") == db) & (ds.field("table") == table)
        columns = ["commit_ts", "start_ts", "seq", "op", "before", "after"]
        data = dataset(DeltaTable(self._paths.table("mutation")))
        rows = data.to_table(columns=columns, filter=where).to_pylist()
        events = [RowEvent(**{**row, "before": _image(row["before"]), "after": _image(row["after"])}) for row in rows]
        return sorted(events, key=lambda event: event.place)


def _image(pairs: list[tuple[str, str | None]] | None) -> Row | None:
    return None if pairs is None else dict(pairs)


def _plain(image: Mapping[str, str | None] | None) -> Row | None:
    return None if image is None else dict(image)


def _day(ts: int) -> pa.Scalar:
    return pa.scalar(tso.to_datetime(ts).date())


def _is_key(event: RowEvent, columns: Sequence[str], key: Sequence[str | None]) -> bool:
    images = [image for image in (event.before, event.after) if image is not None]
    return any([image.get(name) for name in columns] == list(key) for image in images)


def _patched(definition: TableDef, rows: list[Row], net: Sequence[Any]) -> list[Row]:
    """`rows` after net changes, sorted by key."""
    columns = definition.identity().columns
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row_key(row, columns), []).append(row)
    for change in net:
        kept = by_key.get(change.key, [])
        if change.op == "insert":
            by_key[change.key] = kept + [dict(change.after)] * change.copies
        elif change.op == "replace":
            by_key[change.key] = [dict(change.after)]
        else:
            by_key[change.key] = kept[change.copies :]
    return [row for key in sorted(by_key, key=_sort_key) for row in by_key[key]]


def _sort_key(key: str) -> list[tuple[int, int, str]]:
    values = [value or "" for value in json.loads(key)]
    return [(0, int(v), "") if v.lstrip("-").isdigit() else (1, 0, v) for v in values]
