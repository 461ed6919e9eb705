"""The lake tables that stages write: created once with their properties, then overwritten only by exact predicates.

A rerun replaces rows with the same rows (DESIGN 2). txnVersion is never used: a smaller one is silently dropped (R-24).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import ColumnProperties, CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from binlake.common import rowhash
from binlake.common.lakecolumns import Binlog, Change, Ddl, History, OfSegment, Statement
from binlake.common.localfiles import SPACE_HINT
from binlake.common.rowhash import Fold
from binlake.errors import Transient
from binlake.lake.damage import describe_storage_text, find_os_code, require_space
from binlake.lake.lease import require_leases
from binlake.lake.lock import build_commit_properties
from binlake.lake.opentable import KnownTable, is_table, open_files_of, open_fully, open_known, open_table
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.paths import LakePaths
from binlake.lake.store import build_delta_options, choose_hooks, open_files
from binlake.lake.storetable import CHECKPOINT_EVERY, StoreTable, build_add
from binlake.lake.tables import STAGE_TABLES, LakeTable, parse_schema
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import Rows

_GREATEST = (1 << 63) - 1
AGAIN = "the stage can run again; let only Binlake maintain these tables"
"""The hint after a refused commit."""
_REPEATED = (
    OfSegment.SEGMENT, OfSegment.DB, OfSegment.TABLE, Statement.PHASE, Statement.KIND, Change.IDENTITY, Change.OP,
    Change.COPIES, Change.MUTATIONS, Ddl.DECISION, Binlog.PUMP,
)  # fmt: skip
# Other texts hardly repeat: dictionaries would cost a fifth of the writing, and names in maps compress well anyway.
_WRITER = WriterProperties(
    compression="ZSTD",
    default_column_properties=ColumnProperties(dictionary_enabled=False),
    column_properties={name: ColumnProperties(dictionary_enabled=True) for name in _REPEATED},
)


def ensure_tables(paths: LakePaths) -> None:
    """Create the tables that are missing. The caller holds the lake's lock `landing`."""
    for table in STAGE_TABLES:
        ensure_table(paths, table)


def ensure_table(paths: LakePaths, table: LakeTable) -> None:
    """Create the table if it is missing. The caller holds the lock under which it is written."""
    place = paths.locate_table(table.name)
    if not is_table(place):
        # `parquet.block.size` is a setting of Spark's writer that Delta does not know.
        DeltaTable.create(
            place,
            schema=table.build_arrow_schema(),
            partition_by=list(table.partitioned_by) or None,
            description=table.comment,
            configuration=table.build_properties(),
            raise_if_key_not_exists=False,
            storage_options=build_delta_options(place),
        )


def overwrite(rows: pa.Table, paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str]) -> int:
    """Replace the rows that match `predicate` by `rows` (all of which must match it) in one commit.

    Returns the number of rows written. The caller holds the table's lock. `note` goes into the commit's userMetadata
    (`DESCRIBE HISTORY`): run, window, stage. Raises Transient.
    """
    require_space(paths.locate_table(table.name))
    place, data = open_table(paths.locate_table(table.name)), rows.select(table.list_column_names())
    about = commit_properties(note)
    try:
        if _may_match(place, predicate):
            write_deltalake(place, data, mode="overwrite", predicate=predicate, commit_properties=about,
                            writer_properties=_WRITER)  # fmt: skip
        elif data.num_rows and table.partitioned_by:
            # Nothing to replace: Arrow writes with less CPU and far less memory (bench/README.md).
            folder, kinds = paths.locate_table(table.name), parse_schema(table.build_spark_schema())
            commit_parts(paths, table, write_parts(folder, table, [data.cast(kinds)]), [], note, opened=place)
        elif data.num_rows:
            write_deltalake(place, data, mode="append", commit_properties=about, writer_properties=_WRITER)
    except (DeltaError, OSError) as error:
        raise _build_write_error(paths, table, error) from error
    return int(data.num_rows)


def replace_history(
    paths: LakePaths,
    table: LakeTable,
    lo: int,
    hi: int | None,
    parts: Sequence[TablePart],
    note: Mapping[str, str],
    opened: KnownTable | None = None,
) -> None:
    """Replace the rows with lo < commit_ts <= hi (None: all above lo) by the files `parts`, in one commit.

    The files are in the table's folder. If an old file also has other rows, which maintenance joined with these, their
    rows are copied; later stages of this process still read the files, which VACUUM deletes one day. The caller holds
    the table's lock. `opened`: the table, if the caller has opened it under that lock. Raises Transient.
    """
    opened = open_known(paths.locate_table(table.name)) if opened is None else opened
    replaced = _find_files_of_range(open_files_of(opened), lo, hi)
    if replaced is not None:
        if parts or replaced:
            commit_parts(paths, table, parts, replaced, note, opened=opened)
        return
    opened = open_fully(opened)
    predicate = f"{History.COMMIT_TS} > {lo}" + ("" if hi is None else f" AND {History.COMMIT_TS} <= {hi}")
    rows = _read_parts(paths.locate_table(table.name), table, parts)
    try:
        write_deltalake(opened, rows, mode="overwrite", predicate=predicate, commit_properties=commit_properties(note),
                        writer_properties=_WRITER)  # fmt: skip
    except (DeltaError, OSError) as error:
        raise _build_write_error(paths, table, error) from error


def _find_files_of_range(table: DeltaTable, lo: int, hi: int | None) -> list[RemoveAction] | None:
    """The files that have only rows of the range; None if one has others too."""
    end = _GREATEST if hi is None else hi
    if not _may_match(table, commit_ts_predicate(lo, end)):
        return []
    now, removals = int(time.time() * 1000), []
    for add in _list_files(table):
        least, most = add.get(f"min.{History.COMMIT_TS}"), add.get(f"max.{History.COMMIT_TS}")
        if least is None or most is None:
            return None
        if least > end or most <= lo:
            continue
        if least <= lo or most > end:
            return None
        day = {History.COMMIT_DATE: add[f"partition.{History.COMMIT_DATE}"].isoformat()}
        removals.append(RemoveAction(add["path"], True, now, add["size_bytes"], day))
    return removals


def _read_parts(place: str, table: LakeTable, parts: Sequence[TablePart]) -> pa.RecordBatchReader:
    (name,) = table.partitioned_by
    schema = parse_schema(table.build_spark_schema())
    days = ds.partitioning(pa.schema([schema.field(name)]), flavor="hive")
    files, root = open_files(place)
    names = [f"{root}/{part.path}" for part in parts]
    if not names:
        return pa.RecordBatchReader.from_batches(schema, [])
    dataset = ds.dataset(names, schema, filesystem=files, format="parquet", partitioning=days, partition_base_dir=root)
    scanner = dataset.scanner(batch_readahead=1)
    return scanner.to_reader()


def _list_window_files(table: DeltaTable, window: str) -> list[RemoveAction]:
    """The files with rows of `window` in a table partitioned by window, to be replaced."""
    if not _may_match(table, f"{OfSegment.WINDOW} = '{window}'"):
        return []
    now, own = int(time.time() * 1000), {OfSegment.WINDOW: window}
    return [
        RemoveAction(add["path"], True, now, add["size_bytes"], own)
        for add in _list_files(table)
        if add[f"partition.{OfSegment.WINDOW}"] == window
    ]


def replace_window(
    paths: LakePaths, table: LakeTable, window: str, parts: Sequence[TablePart], note: Mapping[str, str]
) -> None:
    """Replace the rows of `window` by the files `parts`; no commit if there are none. Raises Transient."""
    opened = open_known(paths.locate_table(table.name))
    replaced = _list_window_files(open_files_of(opened), window)
    if parts or replaced:
        commit_parts(paths, table, parts, replaced, note, opened=opened)


def _list_files(table: DeltaTable) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return listed


def commit_parts(
    paths: LakePaths,
    table: LakeTable,
    parts: Sequence[TablePart],
    replaced: Sequence[RemoveAction],
    note: Mapping[str, str],
    *,
    data_change: bool = True,
    opened: KnownTable | None = None,
) -> None:
    """Add the files `parts` to `table` and remove those `replaced`, in one commit. Raises Transient.

    `data_change`: False if the rows stay the same. `opened`: the table, if the caller has just opened it.
    """
    require_space(paths.locate_table(table.name))
    known = open_known(paths.locate_table(table.name)) if opened is None else opened
    if isinstance(known, StoreTable) and not replaced and known.takes_commits():
        _add_parts(paths, table, known, parts, note, data_change)
        return
    place = known.open_fully() if isinstance(known, StoreTable) else known
    now = int(time.time() * 1000)
    adds = [AddAction(part.path, part.size, part.values, now, data_change, part.stats) for part in parts]
    try:
        place.create_write_transaction(
            [*adds, *replaced],
            "append",
            place.schema(),
            list(table.partitioned_by),
            commit_properties=commit_properties(note),
            post_commithook_properties=choose_hooks(paths.locate_table(table.name), place.version()),
        )
    except DeltaError as error:
        raise _build_write_error(paths, table, error) from error


def _add_parts(
    paths: LakePaths, table: LakeTable, known: StoreTable, parts: Sequence[TablePart], note: Mapping[str, str],
    is_change: bool,
) -> None:  # fmt: skip
    require_leases()
    adds = [build_add(part.path, part.values, part.size, part.stats, is_change=is_change) for part in parts]
    about = {"operation": "WRITE", "operationParameters": {"mode": "Append"}, "userMetadata": encode_note(note)}
    try:
        if known.commit(adds, about) % CHECKPOINT_EVERY == 0:
            known.write_checkpoint()
    except CommitFailedError as error:
        # As with delta-rs: it is not repeated, as a writer that has taken the lock over may have come first.
        raise _build_write_error(paths, table, error) from error


def _build_write_error(paths: LakePaths, table: LakeTable, error: Exception) -> Transient:
    # Only the operating system's errors have a code: a disk without space, or of another user.
    return Transient(
        f"rows of `{table.name}` could not be written: {describe_storage_text(error)}",
        where={"path": paths.locate_table(table.name)},
        hint=AGAIN if find_os_code(error) is None else SPACE_HINT,
    )


def encode_note(note: Mapping[str, str]) -> str:
    """The `note` of a commit as the Delta log stores it."""
    return json.dumps(dict(note), sort_keys=True)


def commit_properties(note: Mapping[str, str]) -> CommitProperties:
    """The `note` in the form that a commit by delta-rs takes; the caller holds the table's lock."""
    return build_commit_properties({"userMetadata": encode_note(note)})


def clear_rows(
    paths: LakePaths, table: LakeTable, predicate: str, note: Mapping[str, str], opened: KnownTable | None = None
) -> bool:
    """Remove the rows that match `predicate`; no commit if there are none. Raises Transient.

    `opened`: the table, if the caller has just opened it. Returns whether there was a commit.
    """
    present = open_known(paths.locate_table(table.name)) if opened is None else opened
    if not _may_match(open_files_of(present), predicate):
        return False
    overwrite(build_local_table([], table.build_spark_schema()), paths, table, predicate, note)
    return True


def build_local_table(rows: Iterable[Sequence[object]], schema: str) -> pa.Table:
    """A table of `rows` with the columns of a Spark schema text."""
    kinds = parse_schema(schema)
    columns = list(zip(*rows, strict=True)) or [() for _ in kinds]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=kinds)


def commit_ts_predicate(lo: int, hi: int) -> str:
    """The predicate of lo < commit_ts <= hi."""
    return f"{History.COMMIT_TS} > {lo} AND {History.COMMIT_TS} <= {hi}"


def may_have_rows(paths: LakePaths, table: LakeTable, predicate: str) -> bool:
    """False if partitions and statistics show that no file has a row that matches `predicate`."""
    return _may_match(open_files_of(open_known(paths.locate_table(table.name))), predicate)


def _may_match(table: DeltaTable, predicate: str) -> bool:
    return bool(table.file_uris(file_pruning_predicate=predicate))


def fold_rows(engine: Engine, parts: Sequence[Rows], columns: Sequence[str]) -> Fold:
    """The fold of all rows: equal for equal rows, wherever they are processed (binlake.common.rowhash)."""
    return rowhash.merge_folds(engine.run(partial(_fold_part, columns=list(columns)), parts))


def _fold_part(rows: Rows, columns: list[str]) -> Fold:
    batches = (pa.Table.from_batches([batch]) for batch in rows.read(columns))
    return rowhash.merge_folds(rowhash.fold(rowhash.hash_rows(batch, columns)) for batch in batches)
