"""Finds the target's keys that a range of commit_ts touched, in the form that identifies rows at the checkpoint.

Too many keys do no harm, since each is brought to its state at the checkpoint; a missing key would. So a table whose
key has changed since is reported as `whole`, to be compared completely (hazards R-01, R-18).
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from binlake.audit.audit import Audit
from binlake.base.lakecolumns import Mutation
from binlake.config import Replication
from binlake.ddl.targets import Naming
from binlake.lake.mutations import match_commit_ts
from binlake.lake.opentable import load_table, open_dataset
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import MUTATION
from binlake.repair.verify.keyorder import AnyKey
from binlake.repair.verify.tables import Name, VerifiedTable
from binlake.rows.codec.casts import derive_cast_form
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rules import Rules
from binlake.target.claim.aside import is_aside

_COLUMNS = (Mutation.DB, Mutation.TABLE, Mutation.TABLE_ID, Mutation.KEY, Mutation.NEW_KEY)


@dataclass
class TouchedKeys:
    """`keys` by table of the target; `whole`: tables to compare completely; `gone`: former names of dropped tables."""

    keys: dict[Name, set[tuple[str | None, ...]]] = field(default_factory=dict)
    whole: set[Name] = field(default_factory=set)
    gone: set[Name] = field(default_factory=set)

    def remove_aside(self, aside: Collection[Name]) -> set[Name]:
        """Remove tables that are set `aside`, since bringing one back repairs it. Returns the removed tables."""
        left = {name for name in {*self.keys, *self.whole} if is_aside(aside, name)}
        self.keys = {name: keys for name, keys in self.keys.items() if name not in left}
        self.whole -= left
        return left

    def sort_keys(self) -> dict[Name, list[AnyKey]]:
        """The keys in a stable order."""
        return {name: sorted(keys, key=repr) for name, keys in sorted(self.keys.items())}


def find_touched_keys(
    replication: Replication, lo: int, hi: int, ts: int, tables: Iterable[VerifiedTable], *, most: int = 0
) -> TouchedKeys:
    """The keys of `tables`, the target's at `ts`, that row changes with lo < commit_ts <= hi touched.

    `most`: at most about this many keys of each source table, chosen pseudo-randomly, to bound memory; 0 = all.
    """
    return _Reader(replication, lo, hi, ts, tables, most).read()


class _Reader:
    def __init__(
        self, replication: Replication, lo: int, hi: int, ts: int, tables: Iterable[VerifiedTable], most: int
    ) -> None:
        self._most = most
        self._paths = LakePaths.of(replication)
        self._bounds = (lo, hi)
        self._tables = {fold_pair((table.table.db, table.table.name)): table for table in tables}
        rules = Rules.of(replication)
        self._audit, self._naming = Audit(self._paths, rules), Naming(rules)
        self._state = SchemaHistory(self._paths).read_state_at(ts)

    def read(self) -> TouchedKeys:
        touched = TouchedKeys()
        for (db, name, table_id), keys in self._read_keys_by_table():
            now = self._find_current_table(table_id, (db, name))
            if now is None:
                touched.gone.add((db, name))
            elif self._has_same_identity((db, name), now.table) and _matches_key_width(keys, now.table):
                touched.keys.setdefault(now.name, set()).update(keys)
            else:
                touched.whole.add(now.name)
        for whole in touched.whole:
            touched.keys.pop(whole, None)
        return touched

    def _find_current_table(self, table_id: int, then: Name) -> VerifiedTable | None:
        """The target's table that has the rows now, as it may have been renamed or recreated under its old name."""
        source = self._state.find_table(table_id)
        names = [then] if source is None else [self._naming.map_table(source.db, source.name), then]
        return next((self._tables[key] for db, name in names if (key := fold_pair((db, name))) in self._tables), None)

    def _has_same_identity(self, then: Name, now: TableDef) -> bool:
        """True if keys had the same form in the range as they have now."""
        definitions = self._audit.read_definitions(*then, *self._bounds)
        return all(_describe_identity(definition) == _describe_identity(now) for definition in definitions)

    def _read_keys_by_table(self) -> Iterator[tuple[tuple[str, str, int], set[tuple[str | None, ...]]]]:
        keys: dict[tuple[str, str, int], set[str]] = {}
        data = open_dataset(load_table(self._paths.locate_table(MUTATION.name)))
        for batch in data.to_batches(columns=list(_COLUMNS), filter=match_commit_ts(*self._bounds)):
            rows = pa.Table.from_batches([batch])
            for table in rows.group_by([Mutation.DB, Mutation.TABLE, Mutation.TABLE_ID]).aggregate([]).to_pylist():
                own = rows.filter(_mask_rows_of_table(rows, table))
                texts = {*own.column(Mutation.KEY).to_pylist(), *own.column(Mutation.NEW_KEY).to_pylist()} - {None}
                name = (table[Mutation.DB], table[Mutation.TABLE], table[Mutation.TABLE_ID])
                keys[name] = self._choose(keys.get(name, set()) | texts)
        for name, chosen in sorted(keys.items()):
            yield name, {tuple(json.loads(text)) for text in chosen}

    def _choose(self, texts: set[str]) -> set[str]:
        """The chosen keys: a different choice for each range, but the same one for the same range."""
        if not self._most or len(texts) <= self._most:
            return texts
        return set(heapq.nsmallest(self._most, texts, key=lambda text: compute_pseudo_random(text, self._bounds[1])))


def _matches_key_width(keys: Collection[tuple[str | None, ...]], now: TableDef) -> bool:
    """False if routes put extracted columns into the target's key, which the lake's keys lack."""
    return all(len(key) == len(now.find_identity().columns) for key in keys)


def compute_pseudo_random(text: str, seed: int) -> int:
    """A pseudo-random number, the same for the same key and `seed`."""
    return zlib.crc32(f"{seed} {text}".encode())


def _mask_rows_of_table(rows: pa.Table, table: dict[str, object]) -> pa.ChunkedArray:
    masks = [pc.equal(rows.column(name), value) for name, value in table.items()]
    return pc.and_(pc.and_(masks[0], masks[1]), masks[2])


def _describe_identity(table: TableDef) -> tuple[object, ...]:
    columns = ((name, table.find_column(name)) for name in table.find_identity().columns)
    return table.find_identity().kind, tuple(
        (fold_name(name), column and derive_cast_form(column)) for name, column in columns
    )
