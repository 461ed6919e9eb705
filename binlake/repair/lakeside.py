"""The side of the lake: which tables the target must have at a checkpoint, and the rows of one at a commit_ts.

A table is a mirror's version, streamed, plus the row changes after it. Memory holds one batch, the changes between the
mirror's version and the commit_ts, and the result. One pass over the mirror serves all chunks, since its files are not
sorted by key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.audit.audit import Audit
from binlake.changes.net import NetChange, compute_net_changes
from binlake.common.lakecolumns import Mirror
from binlake.config import Replication
from binlake.ddl.definitions import derive_key_defaults
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect import derive_bytewise_table
from binlake.errors import ConfigError
from binlake.lake.mutations import match_table, read_changes
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.windowlog import WindowLog
from binlake.mirror.rows import read_mirror_texts
from binlake.mirror.versions import MirrorVersions
from binlake.repair.chunks import AnyKey, ChunkPlan, Hashes, Numbers, Texts
from binlake.repair.differences import Row
from binlake.repair.serverside import Digest
from binlake.rows.codec import format_key_text
from binlake.rows.schema import SchemaState, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rules import Rules
from binlake.statements.literal import build_images_from_rows

_MODULUS = 1 << 64
Name = tuple[str, str]


class _Batch(NamedTuple):
    """Rows as texts. `weights`: how often each row counts; negative for copies deleted after the mirror's version."""

    texts: Texts
    weights: npt.NDArray[np.int64]


class VerifiedLakeTable:
    """The table with the target's definition `table` at commit_ts `ts`, which must be in `audit`'s range.

    `inexact`: why the mirror may differ from the source; empty = exact. Raises LostRange.
    """

    def __init__(self, audit: Audit, paths: LakePaths, table: TableDef, ts: int) -> None:
        self._audit, self._paths, self._table, self._ts = audit, paths, table, ts
        self._base = audit.look_up_base_version(table.db, table.name, ts)
        self.inexact = self._base.inexact

    @cached_property
    def _net(self) -> dict[str, NetChange]:
        """The net change of each key after the mirror's version."""
        table = self._table
        since = self._audit.find_changes_start_ts(self._base, self._ts)
        later = read_changes(self._paths, since, self._ts, match_table(table.db, table.name))
        events = [change.to_event() for change in later]
        return {net.key: net for net in compute_net_changes(events, table.find_identity(), derive_key_defaults(table))}

    def compute_digests(self, plan: ChunkPlan, numbers: Sequence[int]) -> Iterator[tuple[int, Digest]]:
        """The digest of each chunk, all in one pass."""
        counts = np.zeros(plan.cuts.count, np.int64)
        sums = np.zeros(plan.cuts.count, np.uint64)
        for _, chunks, batch in self._read_rows_by_chunk(plan, numbers):
            hashed = plan.hash_rows(batch.texts)
            np.add.at(counts, chunks, batch.weights)
            np.add.at(sums, chunks, hashed * batch.weights.astype(np.uint64))
        for number in numbers:
            yield number, Digest(int(counts[number]), int(sums[number]))

    def compute_part_digests(self, plan: ChunkPlan, wanted: Mapping[int, int]) -> dict[int, dict[int, Digest]]:
        """By chunk of `wanted` (number -> parts), the digest of each part that has rows."""
        digests: dict[int, dict[int, Digest]] = {number: {} for number in wanted}
        for number, chunks, batch in self._read_rows_by_chunk(plan, list(wanted), each=True):
            del chunks
            parts, hashed = plan.compute_part_numbers(batch.texts, wanted[number]), plan.hash_rows(batch.texts)
            for part in np.unique(parts).tolist():
                old = digests[number].get(part, Digest(0, 0))
                digests[number][part] = _add_rows(old, hashed[parts == part], batch.weights[parts == part])
        return {number: {p: digest for p, digest in parts.items() if digest.rows} for number, parts in digests.items()}

    def read_rows(self, plan: ChunkPlan, wanted: Mapping[int, tuple[int, Sequence[int]]]) -> list[Row]:
        """The rows of some parts. `wanted`: chunk number -> (number of parts, the wanted parts)."""
        gathered = _RowCollector(self._table)
        for number, _, batch in self._read_rows_by_chunk(plan, list(wanted), each=True):
            parts, chosen = wanted[number]
            gathered.add(_filter_batch(batch, np.isin(plan.compute_part_numbers(batch.texts, parts), list(chosen))))
        return gathered.list_rows()

    def read_rows_by_key(self, keys: Sequence[AnyKey]) -> list[Row]:
        """The rows with one of `keys`, with all copies."""
        texts = {format_key_text(list(key)) for key in keys}
        gathered = _RowCollector(self._table)
        for batch in self._read_batches(texts):
            gathered.add(batch)
        return gathered.list_rows()

    def _read_rows_by_chunk(
        self, plan: ChunkPlan, numbers: Sequence[int], *, each: bool = False
    ) -> Iterator[tuple[int, Numbers, _Batch]]:
        """(number, chunk of each row, rows) for the chunks `numbers`. `each`: one chunk at a time, with its number."""
        for batch in self._read_batches():
            chunks = plan.compute_chunk_numbers(batch.texts)
            inside = np.isin(chunks, list(numbers))
            batch, chunks = _filter_batch(batch, inside), chunks[inside]
            if not each:
                yield -1, chunks, batch
                continue
            for number in np.unique(chunks).tolist():
                yield number, chunks[chunks == number], _filter_batch(batch, chunks == number)

    def _read_batches(self, keys: set[str] | None = None) -> Iterator[_Batch]:
        """All rows, or those with one of `keys` (in the form of the mirror's `_rowkey`)."""
        changed = pa.array(list(self._net), pa.string())
        keyed = self._table.find_identity().kind != "row"
        for batch in self._audit.read_base(self._base):
            rows = pa.Table.from_batches([batch])
            if keyed:
                rows = rows.filter(pc.invert(pc.is_in(rows.column(Mirror.ROWKEY), changed)))
            if keys is not None:
                rows = rows.filter(pc.is_in(rows.column(Mirror.ROWKEY), pa.array(sorted(keys), pa.string())))
            if rows.num_rows:
                yield _Batch(read_mirror_texts(self._table, rows), np.ones(rows.num_rows, np.int64))
        later = [net for key, net in self._net.items() if keys is None or key in keys]
        images = [(image, weight) for net in later for image, weight in _weigh_images(net)]
        if images:
            names = [column.name for column in self._table.row_columns]
            columns = build_images_from_rows([{**dict.fromkeys(names), **image} for image, _ in images], names)
            texts = {name: values.to_pylist() for name, values in columns.items()}
            yield _Batch(texts, np.asarray([weight for _, weight in images], np.int64))


def _weigh_images(net: NetChange) -> Iterator[tuple[Row, int]]:
    if net.after is not None:
        yield net.after, net.copies
    elif net.identity == "row" and net.before is not None:
        yield net.before, -net.copies


class _RowCollector:
    """Collects rows from batches. A row with a negative weight removes as many equal rows."""

    def __init__(self, table: TableDef) -> None:
        self._identity = table.find_identity()
        self._rows: list[Row] = []
        self._gone: dict[str, int] = {}

    def add(self, batch: _Batch) -> None:
        names = list(batch.texts)
        for values, weight in zip(zip(*batch.texts.values(), strict=True), batch.weights.tolist(), strict=True):
            row = dict(zip(names, values, strict=True))
            if weight < 0:
                self._gone[self._format_key(row)] = self._gone.get(self._format_key(row), 0) - weight
            else:
                self._rows += [row] * weight

    def list_rows(self) -> list[Row]:
        if not self._gone:
            return self._rows
        left, gone = [], dict(self._gone)
        for row in self._rows:
            key = self._format_key(row)
            if gone.get(key, 0):
                gone[key] -= 1
            else:
                left.append(row)
        return left

    def _format_key(self, row: Row) -> str:
        return format_key_text([row[name] for name in self._identity.columns])


def _filter_batch(batch: _Batch, mask: npt.NDArray[np.bool_]) -> _Batch:
    if mask.all():
        return batch
    chosen = np.flatnonzero(mask).tolist()
    texts = {name: [values[index] for index in chosen] for name, values in batch.texts.items()}
    return _Batch(texts, batch.weights[mask])


def _add_rows(digest: Digest, hashed: Hashes, weights: npt.NDArray[np.int64]) -> Digest:
    total = int((hashed * weights.astype(np.uint64)).sum(dtype=np.uint64))
    return Digest(digest.rows + int(weights.sum()), (digest.sum + total) % _MODULUS)


@dataclass(frozen=True)
class VerifiedTable:
    """A table to compare.

    `table`: the definition of the lake's rows; `expected`: the definition that the target must have (other collations);
    `sources`: names at the source; `begun_before`: it existed before the lake's first window, so the lake has only rows
    that changed since.
    """

    table: TableDef
    expected: TableDef
    sources: tuple[Name, ...]
    begun_before: bool = False

    @property
    def name(self) -> Name:
        """(database, table) at the target."""
        return self.table.db, self.table.name


def list_tables_at(
    replication: Replication, paths: LakePaths, ts: int, wanted: Sequence[str] = ()
) -> list[VerifiedTable]:
    """The target's tables at `ts`, sorted by name; only `wanted` (db.table) if given.

    Raises ConfigError for a wanted table that does not exist.
    """
    rules = Rules.of(replication)
    state, naming = SchemaHistory(paths).read_state_at(ts), Naming(rules)
    tables = read_target_tables_at(paths, naming, ts, state)
    sources: dict[Name, list[TableDef]] = {}
    for table in naming.select_replicated(state.list_tables()):
        if table.kind == "table":
            db, name = naming.map_table(table.db, table.name)
            sources.setdefault(fold_pair((db, name)), []).append(table)
    old = _find_tables_older_than_lake(paths, state)
    verified = [_build_verified_table(replication, tables, name, sources[name], old) for name in sorted(sources)]
    return _select_wanted(verified, wanted)


def _find_tables_older_than_lake(paths: LakePaths, state: SchemaState) -> set[int]:
    """Ids in `state` of tables that existed at the lake's start, without a mirror of their rows at that time (R-34)."""
    landed = WindowLog(paths).find_landed_range()
    if landed is None:
        return set()
    first, versions = landed[0], MirrorVersions(paths)
    known = SchemaHistory(paths).read_state_at(first).list_tables()
    now = [(then, state.find_table(then.id)) for then in known]
    return {
        table.id for then, table in now if table is not None and versions.find_at(then.db, then.name, first) is None
    }


def read_cluster_id(windows: WindowLog) -> int:
    """The source cluster of the lake. Raises ConfigError for an empty lake."""
    landed = windows.find_landed_ts()
    newest = windows.list_landed((landed - 1, landed)) if landed is not None else []
    manifest = windows.read_manifest(*newest[0]) if newest else None
    if manifest is None:
        raise ConfigError("the lake is empty", hint="run the replication's first window")
    return manifest.cluster_id


def _build_verified_table(
    replication: Replication, tables: TargetTables, name: Name, sources: list[TableDef], old: Collection[int]
) -> VerifiedTable:
    table = tables.find(*name)
    if table is None:
        raise ConfigError("a routed table has no definition", where={"table": ".".join(name)})
    expected = table
    if replication.target is not None and not replication.source.new_collation:
        expected = derive_bytewise_table(table, replication.target.db_type)
    names = tuple((source.db, source.name) for source in sources)
    return VerifiedTable(table, expected, names, any(source.id in old for source in sources))


def _select_wanted(tables: list[VerifiedTable], wanted: Sequence[str]) -> list[VerifiedTable]:
    if not wanted:
        return tables
    by_name = {fold_name(".".join(verified.name)): verified for verified in tables}
    missing = [name for name in wanted if fold_name(name) not in by_name]
    if missing:
        raise ConfigError(
            f"the replication has no table {', '.join(missing)} at the target's checkpoint",
            hint="use the target's names: db.table",
        )
    return [by_name[fold_name(name)] for name in dict.fromkeys(wanted)]
