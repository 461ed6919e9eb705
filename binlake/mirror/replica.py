"""One mirror table through delta-rs: every commit carries the commit_ts up to which it is complete (hazards R-32).

The position is Delta's own transaction version of one application id, so rows and position change in one commit. It is
read before each write and never goes back: what a rerun has behind it, it passes over (hazards R-24 is about writers
that do not look).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from binlake.base.lakecolumns import Change, Mirror
from binlake.lake.columntypes import schema_of
from binlake.lake.dataset import open_dataset
from binlake.mirror.rows import Reshaper, image_texts, typed_rows
from binlake.rows.schema import TableDef
from binlake.statements.literal import quote_name

APP = "binlake-mirror"
UPTO = "binlake.upto"
COMPACT_EVERY = 64

Batches = Iterable[pa.RecordBatch]
Source = Callable[[], Batches]


class Replica:
    """The mirror at `path`. Nothing is read before the first call; `retention_days` applies to a new table."""

    def __init__(self, path: str, retention_days: int) -> None:
        self._path = path
        self._days = retention_days
        self._table: DeltaTable | None = None

    def exists(self) -> bool:
        """True when the table was ever made, dropped at the source or not."""
        return self._open() is not None

    @property
    def version(self) -> int:
        """The Delta version as last read or written; -1 when there is none."""
        return self._table.version() if self._open() is not None and self._table is not None else -1

    def position(self) -> int:
        """The commit_ts up to which the mirror is complete; -1 when there is no table."""
        table = self._open()
        found = None if table is None else table.transaction_version(APP)
        return -1 if found is None else int(found)

    def version_at(self, commit_ts: int) -> int | None:
        """The newest Delta version complete up to `commit_ts` or less; None when there is none."""
        table = self._open()
        history = [] if table is None else table.history()
        return next((int(c["version"]) for c in history if UPTO in c and int(c[UPTO]) <= commit_ts), None)

    def has_merged(self, upto: int) -> bool:
        """True when rows were merged up to exactly `upto`, not only a DDL done there."""
        table = self._open()
        history = [] if table is None else table.history()
        return any(c.get("operation") == "MERGE" and int(c.get(UPTO, -1)) == upto for c in history)

    def create(self, table: TableDef, upto: int) -> None:
        """An empty mirror of `table`; what a former table of that name held stays in the older versions."""
        self._overwrite(pa.RecordBatchReader.from_batches(schema_of(table), []), upto)

    def fill(self, table: TableDef, rows: Batches, upto: int) -> None:
        """Make the mirror of `table` from `rows` (streamed), in one commit."""
        self._overwrite(pa.RecordBatchReader.from_batches(schema_of(table), rows), upto)

    def _overwrite(self, rows: pa.RecordBatchReader, upto: int) -> None:
        if not self.exists():
            days = f"interval {self._days} days"
            self._table = DeltaTable.create(
                self._path,
                rows.schema,
                description="Mirror of a source table; see docs/reference/lake-tables.md",
                # Time travel is the purpose of these tables: Delta's own defaults end after a week (hazards R-33).
                configuration={
                    "delta.deletedFileRetentionDuration": days,
                    "delta.logRetentionDuration": f"interval {max(self._days, 30)} days",
                    "delta.checkpointInterval": "50",
                },
            )
        write_deltalake(
            self._path, rows, mode="overwrite", schema_mode="overwrite", commit_properties=_properties(upto)
        )
        self._table = None

    def truncate(self, upto: int) -> None:
        """Remove all rows."""
        self._require().delete(commit_properties=_properties(upto))

    def add_columns(self, fields: list[pa.Field], upto: int) -> None:
        """Append columns that are NULL in every row, without rewriting any (the order of columns stays Delta's own)."""
        kept = [Field.from_arrow(field) for field in fields]
        self._require().alter.add_columns(kept, commit_properties=_properties(upto))

    def reshape(self, reshaper: Reshaper, after: TableDef, upto: int) -> None:
        """Rewrite the mirror in the layout of `after`, streamed."""
        self.fill(after, reshaper.batches(iter(self.batches())), upto)

    def batches(self, version: int | None = None) -> Batches:
        """The rows, of `version` when given."""
        table = self._require() if version is None else DeltaTable(self._path, version=version)
        names = [field.name for field in table.schema().fields]
        found: Batches = open_dataset(table).to_batches(columns=names)
        return found

    def present_keys(self, keys: Collection[str]) -> set[str]:
        """Those of `keys` (texts as `row_keys` writes them) that a row has."""
        table = self._open()
        if table is None or not keys:
            return set()
        wanted, found = pa.array(sorted(keys), pa.string()), set()
        for batch in open_dataset(table).to_batches(columns=[Mirror.ROWKEY]):
            own = batch.column(0).cast(pa.string())
            found.update(own.filter(pc.is_in(own, value_set=wanted)).to_pylist())
        return found

    def merge_keyed(self, table: TableDef, net: pa.Table, upto: int | None) -> None:
        """Apply net changes of keyed rows; `upto` None: more of the same part follows, the position stays.

        A row with a newer `_commit_ts` wins over `net` (an old window can never put an old row back, R-32).
        """
        rows, deleted = _rows_of(table, net)
        self._merge(rows.append_column("_deleted", deleted), upto)

    def merge_keyless(self, table: TableDef, net: pa.Table, upto: int) -> None:
        """Apply net copies of equal rows in one commit, guarded by the position alone: it must not run twice."""
        rows, deleted = _rows_of(table, net)
        keys = rows.column(Mirror.ROWKEY).to_pylist()
        have = self._copies(set(keys))
        places: list[int] = []
        numbers: list[int] = []
        gone: list[bool] = []
        counts = zip(keys, net.column(Change.COPIES).to_pylist(), deleted.to_pylist(), strict=True)
        for place, (key, copies, less) in enumerate(counts):
            first = have.get(key, 0)
            span = range(max(first - copies, 0), first) if less else range(first, first + copies)
            places += [place] * len(span)
            numbers += span
            gone += [less] * len(span)
        source = rows.take(pa.array(places, pa.int64()))
        copy = source.schema.get_field_index(Mirror.COPY)
        source = source.set_column(copy, Mirror.COPY, pa.array(numbers, pa.int32()))
        self._merge(source.append_column("_deleted", pa.array(gone, pa.bool_())), upto)

    def _copies(self, keys: set[str]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for batch in open_dataset(self._require()).to_batches(columns=[Mirror.ROWKEY]):
            for key in batch.column(0).to_pylist():
                if key in keys:
                    counts[key] = counts.get(key, 0) + 1
        return counts

    def _merge(self, source: pa.Table, upto: int | None) -> None:
        table = self._require()
        names = [quote_name(name) for name in source.schema.names if name != "_deleted"]
        values = {name: f"s.{name}" for name in names}
        newer = f"t.{Mirror.COMMIT_TS} <= s.{Mirror.COMMIT_TS}"
        (
            table.merge(
                source,
                f"t.{Mirror.ROWKEY} = s.{Mirror.ROWKEY} AND t.{Mirror.COPY} = s.{Mirror.COPY}",
                source_alias="s",
                target_alias="t",
                commit_properties=_properties(upto),
            )
            .when_matched_delete(f"s._deleted AND {newer}")
            .when_matched_update(values, predicate=f"NOT s._deleted AND {newer}")
            .when_not_matched_insert(values, predicate="NOT s._deleted")
            .execute()
        )

    def tidy(self) -> None:
        """Join small files now and then; rows and position stay."""
        table = self._require()
        if table.version() and table.version() % COMPACT_EVERY == 0:
            self._compact(table)
            self._table = None

    def upkeep(self, *, join: bool) -> dict[str, int]:
        """Join small files when wanted, drop those that left the table beyond its retention; how many of each."""
        table = self._open()
        if table is None:
            return {"joined": 0, "dropped": 0}
        joined = self._compact(table) if join else 0
        # Lite: by the log, with the retention that the table was made with.
        dropped = table.vacuum(dry_run=False, full=False)
        self._table = None
        return {"joined": joined, "dropped": len(dropped)}

    def _compact(self, table: DeltaTable) -> int:
        """Files that were joined; the new version says how far it is complete, as every other does."""
        told = CommitProperties(custom_metadata={UPTO: str(self.position())})
        return int(table.optimize.compact(commit_properties=told)["numFilesRemoved"])

    def _open(self) -> DeltaTable | None:
        if self._table is None:
            try:
                self._table = DeltaTable(self._path)
            except TableNotFoundError:
                return None
        return self._table

    def _require(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise TableNotFoundError(self._path)
        return table


def _rows_of(table: TableDef, net: pa.Table) -> tuple[pa.Table, pa.Array]:
    """(rows of the mirror of `table`: what each of `net` removes or writes; which of them it removes)."""
    deleted = pc.equal(net.column(Change.OP), "delete").combine_chunks()
    before, after = (net.column(side).combine_chunks() for side in (Change.BEFORE, Change.AFTER))
    texts = image_texts(table, pc.if_else(deleted, before, after))
    return typed_rows(table, texts, net.column(Change.LAST_COMMIT_TS).to_pylist(), [0] * net.num_rows), deleted


def _properties(upto: int | None) -> CommitProperties:
    if upto is None:
        return CommitProperties()
    metadata: Mapping[str, Any] = {UPTO: str(upto)}
    return CommitProperties(custom_metadata=dict(metadata), app_transactions=[Transaction(APP, upto)])
