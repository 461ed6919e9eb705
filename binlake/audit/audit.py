"""Answers from the lake without Spark: a row's history, a table as of any commit_ts, one transaction (MISSION C-07).

A Delta version of a mirror has the state at a window's end or after a DDL. Between two versions the row changes in
`mutation` are exact, so every commit_ts has an answer, even inside a window (hazards R-33).
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from binlake import tso
from binlake.changes.net import compute_net_changes, encode_row_key
from binlake.ddl.definitions import WindowDefinitions, derive_key_defaults
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import LostRange, SchemaError
from binlake.lake.continuity import require_all_windows
from binlake.lake.damage import name_damage
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import (
    Row,
    RowVersion,
    build_key_texts,
    match_definitions,
    match_keys,
    match_table,
    read_changes,
)
from binlake.lake.opentable import open_dataset, open_version
from binlake.lake.paths import LakePaths
from binlake.lake.seek import Slice, TimeBudget, find_newest
from binlake.lake.sharedtargets import read_locks, read_target_tables_at
from binlake.lake.transactions import LandedTransaction, find_transaction
from binlake.lake.windowlog import WindowLog
from binlake.mirror.rows import read_mirror_texts
from binlake.mirror.versions import IN_PART, MirrorState, MirrorVersions
from binlake.pipeline import list_stages_with_versions
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules

_BATCH_ROWS = 16_384
"""Batch size, in rows, when a whole mirror is read."""


@dataclass(frozen=True)
class TableAsOf:
    """A table at `ts`: columns in table order, rows of canonical texts sorted by key; `inexact` as in mirror_version.

    `base`: the mirror's version to which later changes were applied (delta_version -1: no version existed).
    """

    ts: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    inexact: str
    base: MirrorState


class Audit:
    """Reads one lake."""

    def __init__(self, paths: LakePaths, rules: Rules | None = None, log: WindowLog | None = None) -> None:
        """`rules`: the replication's; without them every table has the source's name. `log`: a shared WindowLog."""
        self.paths = paths
        self._naming = Naming(rules or Rules())
        self._log = log or WindowLog(paths)
        self._versions = MirrorVersions(paths)

    def read_merged_range(self) -> tuple[int, int]:
        """The range (lo, hi] of landed and merged row changes. Raises LostRange if it is empty or lost a window."""
        lo, hi = self.read_landed_range()
        require_all_windows(self.paths, self._log, list_stages_with_versions(), glances=True)
        merged = self._log.find_greatest_hi("merge")
        return lo, min(hi, lo if merged is None else merged)

    def read_landed_range(self) -> tuple[int, int]:
        """The range (lo, hi] of landed transactions. Raises LostRange for an empty lake."""
        landed = self._log.find_landed_range()
        if landed is None:
            raise LostRange("the lake is empty", where={"lake": self.paths.root}, hint="land a first window")
        return landed

    def read_row_history(
        self, db: str, table: str, key: Sequence[str | None], *, after: int = -1, upto: int | None = None
    ) -> list[RowVersion]:
        """The changes of the row with `key` (texts of its identity, in order) with after < commit_ts <= upto.

        A change that moves a row to another key is in the history of both keys. Raises LostRange if the lake does not
        have that range, SchemaError for a table without a definition in it, ConfigError for a wrong key.
        """
        after, upto = self.clip_range(after, upto)
        definitions = self.read_definitions(db, table, after, upto)
        found = match_keys(build_key_texts(definitions, key))
        return read_changes(self.paths, after, upto, match_definitions(definitions) & found)

    def read_row_history_across_keys(
        self, db: str, table: str, key: Sequence[str | None], *, after: int = -1, upto: int | None = None
    ) -> list[RowVersion]:
        """`read_row_history`, plus the changes of these rows before they got this key and after they lost it."""
        after, upto = self.clip_range(after, upto)
        changes = {change.place: change for change in self.read_row_history(db, table, key, after=after, upto=upto)}
        own = build_key_texts(self.read_definitions(db, table, after, upto), key)
        moves = [change for change in changes.values() if change.new_key is not None]
        for change in moves:
            back = change.new_key in own
            changes |= {
                other.place: other for other in self._read_history_under_other_key(change, after, upto, back=back)
            }
        return [changes[place] for place in sorted(changes)]

    def _read_history_under_other_key(
        self, move: RowVersion, after: int, upto: int, *, back: bool
    ) -> Iterator[RowVersion]:
        """The changes of a row under other keys: before the `move` (`back`) or after it, across further moves."""
        key, place = (move.key if back else move.new_key), move.place
        while key is not None:
            where = match_table(move.db, move.table) & match_keys([key])
            lo, hi = (after, place[0]) if back else (place[0] - 1, upto)
            others = read_changes(self.paths, lo, hi, where)
            others = [c for c in others if (c.place < place if back else c.place > place)]
            key, before = None, key
            for other in reversed(others) if back else others:
                yield other
                ends = other.op == ("insert" if back else "delete")
                moved = other.new_key is not None and before == (other.new_key if back else other.key)
                if ends or moved:
                    key, place = (None if ends else other.key if back else other.new_key), other.place
                    break

    def find_newest_of_row(
        self,
        db: str,
        table: str,
        key: Sequence[str | None],
        *,
        upto: int | None,
        count: int,
        budget: TimeBudget,
        most: int,
        after: int = -1,
    ) -> Slice:
        """The newest changes of `read_row_history`, within `budget`, as `seek.find_newest`.

        Raises as `read_row_history`.
        """
        after, upto = self.clip_range(after, upto)
        definitions = self.read_definitions(db, table, after, upto)
        where = match_definitions(definitions) & match_keys(build_key_texts(definitions, key))
        return find_newest(self.paths, after, upto, where, count, budget, most)

    def find_transaction(
        self, ts: int, first: int = 0, count: int | None = None, budget: TimeBudget | None = None
    ) -> LandedTransaction | None:
        """The landed transaction or DDL with this commit_ts or start_ts, or None.

        It has `count` row changes (None: all), starting at index `first`. Raises OutOfTime when `budget` runs out.
        """
        return find_transaction(self.paths, self._log, ts, self.read_landed_range(), first, count, budget)

    def read_table_as_of(self, db: str, table: str, ts: int) -> TableAsOf:
        """The rows of the table after all changes at or below `ts`. Raises LostRange or SchemaError.

        LostRange: `ts` has not landed yet, or is before the first state of this table in the lake.
        """
        self.clip_range(-1, ts)
        definition = self.read_definition_at(db, table, ts)
        # Names are compared case-insensitively, as at the source.
        db, table = definition.db, definition.name
        base = self.find_base_version(db, table, ts)
        rows = self._read_base_rows(definition, base)
        later = read_changes(self.paths, self.find_changes_start_ts(base, ts), ts, match_table(db, table))
        events = [change.to_event() for change in later]
        net = compute_net_changes(events, definition.find_identity(), derive_key_defaults(definition))
        changed = _apply_net(definition, rows, net)
        columns = tuple(column.name for column in definition.row_columns)
        return TableAsOf(ts, columns, tuple(changed), base.inexact, base)

    def read_definition_at(self, db: str, table: str, ts: int) -> TableDef:
        """The table's definition after the last DDL at or before `ts`. Raises SchemaError if it does not exist."""
        definition = self.read_tables_at(ts).find(db, table)
        if definition is None or definition.kind != "table":
            raise SchemaError("the table did not exist at that time", where={"table": f"{db}.{table}", "ts": ts})
        return definition

    def find_incomplete_tables(self, ts: int) -> dict[tuple[str, str], str]:
        """By name, why the lake may not know all rows of a table at `ts`. Raises LostRange."""
        begun = {fold_pair((db, table)) for db, table in self.read_tables_at(self.read_landed_range()[0]).list_names()}
        versions = self._versions.read_latest(ts)
        found = {}
        for db, table in self.read_tables_at(ts).list_names():
            version = versions.get((db, table))
            if version is None or version.dropped:
                found[db, table] = IN_PART if fold_pair((db, table)) in begun else ""
            else:
                found[db, table] = version.inexact
        return {name: why for name, why in found.items() if why}

    def find_base_version(self, db: str, table: str, ts: int) -> MirrorState:
        """The mirror's version from which to derive the state at `ts` with `mutation`. Raises LostRange."""
        self.clip_range(-1, ts)
        return self.look_up_base_version(db, table, ts)

    def look_up_base_version(self, db: str, table: str, ts: int) -> MirrorState:
        """As `find_base_version`, for a `ts` that `clip_range` has accepted."""
        base = self._versions.find_at(db, table, ts)
        if base is None or base.dropped:
            base = self._build_empty_base(db, table)
        self._require_mirror_is_current(base, ts)
        return base

    def find_changes_start_ts(self, base: MirrorState, ts: int) -> int:
        """The latest commit_ts after which row changes must be read for the state at `ts`.

        A table has a version per window that changed it, so it is unchanged until the next version, or up to the
        mirrors' position.
        """
        since = self.find_base_end_ts(base)
        if since == base.hi and base.delta_version >= 0:
            later = self._versions.find_after(base.db, base.table, ts)
            since = max(since, min(ts, later.lo if later is not None else self._mirrored))
        self.require_no_held_rows((base.db, base.table), since, ts)
        return since

    def require_no_held_rows(self, name: tuple[str, str], since: int, ts: int) -> None:
        """Require that no row of (since, ts] is held for a DDL or released by one: the mirror has it at the DDL.

        Raises LostRange.
        """
        if since >= ts:
            return
        holds = read_locks(self._log, self._naming.rules, since, ts).holds
        if any(hold.target == fold_pair(name) for hold in holds):
            raise LostRange(
                "rows of this table wait for a DDL at that time (shard-mode = pessimistic)",
                where={"table": ".".join(name), "ts": ts, "since": since},
                hint="use the end of a window that the mirrors have passed",
            )

    @cached_property
    def _mirrored(self) -> int:
        return self._log.find_greatest_hi("mirror") or 0

    def find_base_end_ts(self, base: MirrorState) -> int:
        """The commit_ts after which row changes are not in `base`.

        It is the version's hi, except directly after a DDL that takes effect before its commit_ts: earlier rows follow
        it.
        """
        ahead = [ddl for ddl in read_landed_ddls(self.paths, base.hi - 1, base.hi) if ddl.since < ddl.commit_ts]
        if not ahead or any(hi == base.hi for _, hi in self._log.list_landed((base.hi - 1, base.hi))):
            return base.hi
        return min(ddl.since for ddl in ahead) - 1

    def read_base(self, base: MirrorState) -> Iterator[pa.RecordBatch]:
        """The rows of a mirror's version, in batches. Raises LostRange if it is beyond the retention."""
        if base.delta_version < 0:
            return
        try:
            with self._name_damage(base):
                yield from self.read_rows_of(base).to_batches(
                    batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
                )
        except (DeltaError, FileNotFoundError) as error:
            raise self.build_version_gone_error(base) from error

    def clip_range(self, after: int, upto: int | None) -> tuple[int, int]:
        """(after, upto] limited to the lake's range. Raises LostRange if `upto` is outside it."""
        first, last = self.read_merged_range()
        upto = last if upto is None else upto
        if upto > last:
            hint = "wait until the next window is merged, or use an earlier time"
            raise LostRange(f"the lake ends at {_format_ts_with_time(last)}", where={"ts": upto}, hint=hint)
        if upto < first:
            hint = "earlier changes are not in this lake"
            raise LostRange(f"the lake starts at {_format_ts_with_time(first)}", where={"ts": upto}, hint=hint)
        return max(after, first), upto

    def read_tables_at(self, ts: int) -> TargetTables:
        """The tables after the last DDL at or before `ts`, by the target's names."""
        return read_target_tables_at(self.paths, self._naming, ts)

    def _require_mirror_is_current(self, base: MirrorState, ts: int) -> None:
        """Require that no DDL of the table is between its mirror and `ts`. Raises LostRange."""
        for ddl in read_landed_ddls(self.paths, base.hi, ts):
            if any((t.db, t.name) == (base.db, base.table) for t in (*ddl.before.tables, *ddl.after.tables)):
                raise LostRange(
                    "the table's mirror has not passed a DDL before that time",
                    where={"table": f"{base.db}.{base.table}", "mirror": base.hi, "ddl": ddl.commit_ts, "ts": ts},
                    hint="run the stage mirror, then run this again",
                )

    def _build_empty_base(self, db: str, table: str) -> MirrorState:
        """The base of a table without a mirror yet: empty at the lake's start, but inexact if the table is older."""
        first = self.read_merged_range()[0]
        return MirrorState(db, table, -1, first, first, inexact=IN_PART)

    def _read_base_rows(self, definition: TableDef, base: MirrorState) -> list[Row]:
        if base.delta_version < 0:
            return []
        at = self.read_tables_at(base.hi).find(base.db, base.table) or definition
        try:
            with self._name_damage(base):
                rows = self.read_rows_of(base).to_table()
        except (DeltaError, FileNotFoundError) as error:
            raise self.build_version_gone_error(base) from error
        texts = read_mirror_texts(at, rows)
        names = list(texts)
        return [dict(zip(names, values, strict=True)) for values in zip(*texts.values(), strict=True)]

    def read_rows_of(self, base: MirrorState) -> pa.dataset.Dataset:
        """The rows of `base`. Raises DeltaError if the version is beyond the mirror's retention."""
        return open_dataset(open_version(self.paths.locate_mirror(base.db, base.table), base.delta_version))

    def _name_damage(self, base: MirrorState) -> AbstractContextManager[None]:
        return name_damage(self.paths.locate_mirror(base.db, base.table), base.delta_version, missing=False)

    def build_version_gone_error(self, base: MirrorState) -> LostRange:
        """The error for a version whose files or log are gone. It says from when on states are available."""
        versions = self._versions.read_versions(base.db, base.table)
        versions = [version for version in versions if version.hi >= base.hi]
        # Files of the oldest versions are deleted first, so a binary search finds the first complete version.
        first = bisect.bisect_left(versions, True, key=self._is_readable)
        readable = (
            f"states of this table are available from {_format_ts_with_time(versions[first].hi)} on"
            if first < len(versions)
            else "no state of this table is available"
        )
        return LostRange(
            f"the state of that time is beyond the mirror's retention: {readable}",
            where={"table": f"{base.db}.{base.table}", "delta_version": base.delta_version},
            hint="`lake.retention-days` sets the retention; `mutation` has the row changes since the lake's start",
        )

    def _is_readable(self, version: MirrorState) -> bool:
        try:
            for fragment in self.read_rows_of(version).get_fragments():
                fragment.count_rows()
        except (DeltaError, FileNotFoundError):
            return False
        return version.delta_version >= 0

    def read_last_definition(self, db: str, table: str) -> TableDef:
        """The table's last definition. Raises SchemaError if it never had one, LostRange for an empty lake."""
        return self.read_definitions(db, table, *self.clip_range(-1, None))[-1]

    def read_definitions(self, db: str, table: str, after: int, upto: int) -> list[TableDef]:
        """Every definition that the table had in (after, upto]. Raises SchemaError if it had none."""
        ddls = read_landed_ddls(self.paths, after, upto, (db, table))
        definitions = WindowDefinitions(self.read_tables_at(after), ddls)
        found = (definitions.find_at(db, table, ts) for ts in (after, *(ddl.since for ddl in ddls)))
        tables = list(dict.fromkeys(table for table in found if table is not None))
        if not tables:
            raise SchemaError(
                "the schema history does not know this table",
                where={"table": f"{db}.{table}"},
                hint="use its name at the source, db.table; a table created later is known from its window on",
            )
        return tables


def _format_ts_with_time(ts: int) -> str:
    return f"{ts} ({tso.to_datetime(ts).isoformat(timespec='milliseconds')})"


def _apply_net(definition: TableDef, rows: list[Row], net: Sequence[Any]) -> list[Row]:
    """`rows` after net changes, sorted by key."""
    columns = definition.find_identity().columns
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(encode_row_key(row, columns), []).append(row)
    for change in net:
        kept = by_key.get(change.key, [])
        if change.op == "insert":
            by_key[change.key] = kept + [dict(change.after)] * change.copies
        elif change.op == "replace":
            by_key[change.key] = [dict(change.after)]
        else:
            by_key[change.key] = kept[change.copies :]
    return [row for key in sorted(by_key, key=lambda key: sort_key(json.loads(key))) for row in by_key[key]]


_NUMBER = re.compile("-?[0-9]{1,80}")


def sort_key(values: Sequence[str | None]) -> list[tuple[int, int, str]]:
    """The sort key of a row's key values: numbers first, by value, then texts."""
    texts = [value or "" for value in values]
    return [(0, int(v), "") if _NUMBER.fullmatch(v) else (1, 0, v) for v in texts]
