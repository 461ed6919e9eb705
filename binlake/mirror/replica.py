"""One mirror table, written through delta-rs. Every commit has the commit_ts up to which it is complete (R-32).

The position is Delta's transaction version of one application id, so rows and position change in the same commit. It is
read before each write and never decreases, so a rerun skips what is already applied (hazards R-24 is about writers that
do not check).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from binlake.common.lakecolumns import Change, Mirror
from binlake.common.process import give_memory_back
from binlake.errors import LostRange
from binlake.lake.access import is_remote
from binlake.lake.columntypes import build_schema
from binlake.lake.continuity import require_not_restored
from binlake.lake.lock import build_commit_properties
from binlake.lake.opentable import load_table, open_dataset, open_table
from binlake.lake.store import build_delta_options, choose_hooks
from binlake.mirror.rewriting import ADDED, build_transaction, has_key, iterate_present_keys, may_rewrite, replace_rows
from binlake.mirror.rows import Reshaper, build_image_rows, select_images
from binlake.rows.schema import TableDef
from binlake.statements.literal import quote_name

APP = "binlake-mirror"
UPTO = "binlake.upto"
BASE = "binlake.base"
"""In a commit: the mirror has rows of a full load only, each of which was added once."""
COMPACT_EVERY = 64
_WRITER = WriterProperties(max_row_group_size=32_768, compression="ZSTD", dictionary_page_size_limit=64 << 10)
"""delta-rs holds a row group that it writes. With its own defaults (a million rows, snappy, a dictionary of 1 MiB for
each column) it took three times the memory, as much CPU, and twice the bytes of the lake."""
_ROWS_AT_ONCE = 16_384
"""Net changes that become typed rows at a time: their images and texts are in memory besides."""
_LONGEST_BOUNDS = 512

_written: dict[str, tuple[tuple[str, int], int]] = {}
"""By path, (the table's id, its version) as this process left it, and its position: delta-rs finds that by reading the
log back to the last checkpoint."""
Batches = Iterable[pa.RecordBatch]
Source = Callable[[], Batches]


class Replica:
    """The mirror at `path`. Nothing is read before the first call; `retention_days` applies to a new table."""

    def __init__(self, path: str, retention_days: int) -> None:
        self._path = path
        self._days = retention_days
        self._table: DeltaTable | None = None

    def exists(self) -> bool:
        """True when the table was ever created, even if it was dropped at the source."""
        return self._open() is not None

    @property
    def version(self) -> int:
        """The Delta version as last read or written; -1 if the table does not exist."""
        return self._table.version() if self._open() is not None and self._table is not None else -1

    def require_version(self, version: int) -> None:
        """Require that the mirror has lost nothing since it was at Delta's `version`. Raises LostRange."""
        if self.version < version:
            raise LostRange(
                f"the mirror has lost a commit: it is at version {self.version}",
                where={"mirror": self._path, "written_as": version},
                hint="restore the files of its `_delta_log` from a copy",
            )
        if self._table is not None and self.version > version:
            require_not_restored(self._table, "/".join(self._path.split("/")[-2:]), version)

    def read_position(self) -> int:
        """The commit_ts up to which the mirror is complete; -1 if it does not exist."""
        table = self._open()
        if table is None:
            return -1
        written = _written.get(self._path)
        if written is not None and written[0] == (str(table.metadata().id), table.version()):
            return written[1]
        found = table.transaction_version(APP)
        return -1 if found is None else int(found)

    def find_version_at(self, commit_ts: int) -> int | None:
        """The newest Delta version that is complete up to at most `commit_ts`, or None."""
        table = self._open()
        history = [] if table is None else table.history()
        return next((int(c["version"]) for c in history if UPTO in c and int(c[UPTO]) <= commit_ts), None)

    def has_merged(self, upto: int) -> bool:
        """True when rows were merged up to exactly `upto`, not only a DDL applied."""
        table = self._open()
        history = [] if table is None else table.history()
        return any(_adds_rows(commit) and int(commit.get(UPTO, -1)) == upto for commit in history)

    def has_base_only(self) -> bool:
        """True when the mirror is empty, or has only rows that `append_base` has added since it was."""
        table = self._open()
        return table is not None and (not table.file_uris() or BASE in table.history(1)[0])

    def append_base(self, table: TableDef, nets: Iterable[pa.Table], upto: int) -> int:
        """Add rows of a full load in one commit, and return their number. They must have keys that no row has.

        A MERGE would read the whole mirror for each part of the load.
        """
        count, failures = 0, list[Exception]()

        def read_rows() -> Batches:
            nonlocal count
            try:
                for net in nets:
                    rows, deleted = _build_rows(table, net)
                    assert not pc.any(deleted).as_py(), "a full load deletes nothing"
                    count += rows.num_rows
                    yield from rows.to_batches()
            except Exception as error:
                # delta-rs would only show its text.
                failures.append(error)
                raise

        try:
            write_deltalake(
                self._require(),
                pa.RecordBatchReader.from_batches(build_schema(table), read_rows()),
                mode="append",
                writer_properties=_WRITER,
                commit_properties=_build_commit_properties(upto, of={BASE: "true"}),
                post_commithook_properties=choose_hooks(self._path, self._require().version()),
            )
        except DeltaError as error:
            raise (failures or [error])[0] from None
        self._table = None
        return count

    def create(self, table: TableDef, upto: int) -> None:
        """Make the mirror of `table` empty; rows of a former table of that name stay in older versions."""
        self._overwrite(pa.RecordBatchReader.from_batches(build_schema(table), []), upto)

    def fill(self, table: TableDef, rows: Batches, upto: int) -> None:
        """Make the mirror of `table` from `rows` (streamed), in one commit."""
        self._overwrite(pa.RecordBatchReader.from_batches(build_schema(table), rows), upto)

    def _overwrite(self, rows: pa.RecordBatchReader, upto: int) -> None:
        if not self.exists():
            days = f"interval {self._days} days"
            self._table = DeltaTable.create(
                self._path,
                rows.schema,
                description="Mirror of a source table; see docs/reference/lake-tables.md",
                # Time travel is the purpose of these tables; Delta's defaults end after a week (hazards R-33).
                configuration={
                    "delta.deletedFileRetentionDuration": days,
                    "delta.logRetentionDuration": f"interval {max(self._days, 30)} days",
                    "delta.checkpointInterval": "50",
                },
                storage_options=build_delta_options(self._path),
            )
        write_deltalake(
            self._require(),
            rows,
            mode="overwrite",
            writer_properties=_WRITER,
            schema_mode="overwrite",
            commit_properties=_build_commit_properties(upto),
        )
        self._table = None

    def truncate(self, upto: int) -> None:
        """Remove all rows."""
        self._require().delete(commit_properties=_build_commit_properties(upto))

    def add_columns(self, fields: list[pa.Field], upto: int) -> None:
        """Append columns that are NULL in every row, without rewriting rows; Delta keeps its order of columns."""
        kept = [Field.from_arrow(field) for field in fields]
        self._require().alter.add_columns(kept, commit_properties=_build_commit_properties(upto))

    def reshape(self, reshaper: Reshaper, after: TableDef, upto: int) -> None:
        """Rewrite the mirror in the layout of `after`, streamed."""
        self.fill(after, reshaper.reshape_batches(iter(self.read_batches())), upto)

    def read_batches(self, version: int | None = None) -> Batches:
        """The rows, of `version` if given."""
        table = self._require() if version is None else load_table(self._path, version=version)
        names = [field.name for field in table.schema().fields]
        found: Batches = open_dataset(table).to_batches(columns=names)
        return found

    def find_present_keys(self, keys: Collection[str]) -> set[str]:
        """Those of `keys` (texts as `build_row_keys` writes them) that have a row."""
        table = self._open()
        if table is None or not keys:
            return set()
        wanted = pa.array(sorted(keys), pa.string())
        return {key for found in iterate_present_keys(table, wanted) for key in found.to_pylist()}

    def merge_keyed(self, table: TableDef, net: pa.Table, upto: int | None, passed: set[str] | None = None) -> None:
        """Apply net changes of keyed rows. `upto` None: more changes of this part follow, so the position stays.

        `passed`: names of files to which this part has added rows only, which have other keys; it is kept up to date.
        A row with a newer `_commit_ts` is kept, so an old window can never restore an old row (R-32). Where no key has
        a row yet, rows are only added: a MERGE would read all columns of the mirror, and hold each file until it finds
        a key in it.
        """
        rows, deleted = _build_rows(table, net)
        if may_rewrite(self._path, current := self._require(), rows.schema):
            give_memory_back()
            about, also = ({}, []) if upto is None else ({UPTO: str(upto)}, [build_transaction(APP, upto)])
            replace_rows(self._path, current, rows, deleted, about, also, set() if passed is None else passed)
            self._remember(current, upto)
            return
        # To filter is to copy, and most net changes of new rows delete nothing.
        added = rows.filter(pc.invert(deleted)) if pc.any(deleted).as_py() else rows
        if added.num_rows and not has_key(self._require(), rows.column(Mirror.ROWKEY)):
            self._append(added, upto)
        else:
            self._merge(rows.append_column("_deleted", deleted), upto)

    def _append(self, rows: pa.Table, upto: int | None) -> None:
        table = self._require()
        give_memory_back()
        write_deltalake(
            table,
            rows,
            mode="append",
            writer_properties=_WRITER,
            commit_properties=_build_commit_properties(upto, of={ADDED: "true"}),
            post_commithook_properties=choose_hooks(self._path, table.version()),
        )
        self._remember(table, upto)
        self._table = None

    def _remember(self, table: DeltaTable, upto: int | None) -> None:
        """Remember the position of what was just written to `table`."""
        if upto is not None:
            _written[self._path] = (str(table.metadata().id), table.version()), upto

    def merge_keyless(self, table: TableDef, net: pa.Table, upto: int) -> None:
        """Apply net copies of equal rows in one commit. It must not run twice; only the position prevents that."""
        rows, deleted = _build_rows(table, net)
        keys = rows.column(Mirror.ROWKEY).to_pylist()
        have = self._count_copies(set(keys))
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

    def _count_copies(self, keys: set[str]) -> dict[str, int]:
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
                f"t.{Mirror.ROWKEY} = s.{Mirror.ROWKEY} AND t.{Mirror.COPY} = s.{Mirror.COPY}{_bound_keys(source)}",
                source_alias="s",
                target_alias="t",
                writer_properties=_WRITER,
                commit_properties=_build_commit_properties(upto),
                post_commithook_properties=choose_hooks(self._path, table.version()),
            )
            .when_matched_delete(f"s._deleted AND {newer}")
            .when_matched_update(values, predicate=f"NOT s._deleted AND {newer}")
            .when_not_matched_insert(values, predicate="NOT s._deleted")
            .execute()
        )
        self._remember(table, upto)

    def tidy(self) -> None:
        """Join small files every COMPACT_EVERY versions; rows and position stay."""
        table = self._require()
        if table.version() and table.version() % COMPACT_EVERY == 0:
            self._compact(table)
            self._table = None

    def maintain(self, *, join: bool) -> dict[str, int]:
        """Join small files if `join` is set; delete files replaced before the retention. Returns both counts."""
        table = self._open()
        if table is None:
            return {"joined": 0, "dropped": 0}
        joined = self._compact(table) if join else 0
        # `full=False` goes by the log, with the retention set when the table was created.
        dropped = table.vacuum(dry_run=False, full=False)
        self._table = None
        return {"joined": joined, "dropped": len(dropped)}

    def _compact(self, table: DeltaTable) -> int:
        """Join small files and return their number. Like every version, the new one has the position."""
        is_base = {BASE: "true"} if BASE in table.history(1)[0] else {}
        properties = build_commit_properties({UPTO: str(self.read_position()), **is_base})
        return int(table.optimize.compact(commit_properties=properties, writer_properties=_WRITER)["numFilesRemoved"])

    def _open(self) -> DeltaTable | None:
        if self._table is None:
            try:
                self._table = open_table(self._path) if is_remote(self._path) else load_table(self._path)
            except TableNotFoundError:
                return None
        return self._table

    def _require(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise TableNotFoundError(self._path)
        return table


def _build_rows(table: TableDef, net: pa.Table) -> tuple[pa.Table, pa.ChunkedArray]:
    """(the mirror rows that `net` writes or removes, a mask of those that it removes)."""
    firsts = range(0, max(net.num_rows, 1), _ROWS_AT_ONCE)
    made = [_build_some_rows(table, net.slice(first, _ROWS_AT_ONCE)) for first in firsts]
    return pa.concat_tables([rows for rows, _ in made]), pa.chunked_array([deleted for _, deleted in made], pa.bool_())


def _build_some_rows(table: TableDef, net: pa.Table) -> tuple[pa.Table, pa.Array]:
    deleted = pc.equal(net.column(Change.OP), "delete").combine_chunks()
    return build_image_rows(table, select_images(net), net.column(Change.LAST_COMMIT_TS).combine_chunks()), deleted


def _bound_keys(source: pa.Table) -> str:
    """What follows for the keys of the mirror's matching rows: delta-rs then reads no file whose statistics exclude it.

    Each window adds a file, which holds few keys. Empty for long keys: the condition is repeated in the log.
    """
    bounds = pc.min_max(source.column(Mirror.ROWKEY).cast(pa.string())).as_py()
    least, most = bounds["min"], bounds["max"]
    if least is None or len(least) + len(most) > _LONGEST_BOUNDS:
        return ""
    texts = [text.replace("'", "''") for text in (least, most)]
    return f" AND t.{Mirror.ROWKEY} >= '{texts[0]}' AND t.{Mirror.ROWKEY} <= '{texts[1]}'"


def _adds_rows(commit: Mapping[str, Any]) -> bool:
    return commit.get("operation") == "MERGE" or BASE in commit or ADDED in commit


def _build_commit_properties(upto: int | None, of: Mapping[str, str] = MappingProxyType({})) -> CommitProperties:
    if upto is None:
        return build_commit_properties({})
    return build_commit_properties({UPTO: str(upto), **of}, [Transaction(APP, upto)])
