"""Some rows of a table as of a commit_ts, without reading the whole table: recently changed rows, then mirror rows.

The cost is limited by the number of requested rows and by the changes between the mirror's state and the commit_ts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from binlake.audit.audit import Audit, sort_key
from binlake.changes.net import NetChange, compute_net_changes
from binlake.common.lakecolumns import Mirror
from binlake.ddl.definitions import derive_key_defaults
from binlake.errors import LostRange, OutOfTime
from binlake.lake.mutations import Row, match_table
from binlake.lake.opentable import FEW_REQUESTS
from binlake.lake.seek import TimeBudget, find_at_most
from binlake.lake.windowlog import WindowLog
from binlake.mirror.rows import read_mirror_texts
from binlake.mirror.versions import MirrorState
from binlake.rows.schema import TableDef

MOST_CHANGES = 5000
"""The maximum number of row changes between the mirror's state and the commit_ts; above it, a preview is refused."""
_BATCH = 16
"""Rows of the mirror decoded at a time, as rows may have values of megabytes."""
_MOST_BYTES = 32 << 20
"""Bytes of mirror rows above which a preview has fewer rows than requested."""


_BIT_BY_BIT = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
_BY_MEGABYTES = ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True, buffer_size=1 << 20)
"""For a file in an object store, where each part is a request: as above it would be one for 8 KiB."""
_SMALL_BYTES = 4 << 20
"""A file in an object store up to this size is read in two requests."""


@dataclass(frozen=True)
class Preview:
    """At most the requested number of rows at commit_ts `ts`, sorted by key. `more`: the table has other rows.

    `base`, `inexact`: as in TableAsOf; `changes`: the number of row changes between that state and `ts`; `key_columns`:
    the columns that identified the rows then.
    """

    ts: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: bool
    changes: int
    base: MirrorState
    key_columns: tuple[str, ...] = ()

    @property
    def inexact(self) -> str:
        """Why the mirror may differ from the source; empty = exact."""
        return self.base.inexact


def preview_rows(
    audit: Audit, log: WindowLog, name: tuple[str, str], ts: int, count: int, budget: TimeBudget, first: int = 0
) -> Preview:
    """`count` rows of the table `name` (db, table) after all changes at or below `ts`, without the `first` ones.

    The order in which rows are left out is the same in each call, so that they can be read page by page.

    Raises as Audit.read_table_as_of, LostRange if too much changed between the mirror's state and `ts`, and OutOfTime.
    """
    audit.clip_range(-1, ts)
    definition = audit.read_definition_at(*name, ts)
    base = audit.find_base_version(definition.db, definition.name, ts)
    net, changes = _read_net_changes(audit, log, definition, base, ts, budget)
    changed = (dict(change.after) for change in net if change.after is not None for _ in range(change.copies))
    wanted = first + count
    rows = list(itertools.islice(changed, wanted + 1))
    try:
        unchanged, full = _read_unchanged_rows(audit, definition, base, net, wanted + 1 - len(rows))
    except (DeltaError, FileNotFoundError) as error:
        raise audit.build_version_gone_error(base) from error
    rows += unchanged
    columns = tuple(column.name for column in definition.row_columns)
    key = definition.find_identity().columns
    shown = sorted(rows[first:wanted], key=lambda row: sort_key([row.get(name) for name in key]))
    return Preview(ts, columns, tuple(shown), len(rows) > wanted or not full, changes, base, tuple(key))


def _read_net_changes(
    audit: Audit, log: WindowLog, definition: TableDef, base: MirrorState, ts: int, budget: TimeBudget
) -> tuple[list[NetChange], int]:
    """Net changes of the table between `base` and `ts`, and the number of row changes that they sum up."""
    since = audit.find_base_end_ts(base)
    mirrored = log.read_newest(("mirror",), 1, ts, ("done",))
    if mirrored and mirrored[0]["hi"] >= base.hi:
        # The table has not changed up to there; otherwise it would have a newer version.
        since = mirrored[0]["hi"]
    if ts <= since:
        return [], 0
    found = find_at_most(audit.paths, since, ts, match_table(definition.db, definition.name), MOST_CHANGES, budget)
    if not found.whole:
        hint = f"use the mirror's state, commit_ts {since}, or `binlake audit table`, which has no limit"
        where = {"table": f"{definition.db}.{definition.name}", "ts": ts, "mirror": since}
        if found.late:
            raise OutOfTime("the row changes after the mirror's state took too long to read", where=where, hint=hint)
        text = f"more than {MOST_CHANGES:,} row changes lie between the mirror's state and that time"
        raise LostRange(text, where=where, hint=hint)
    events = [change.to_event() for change in found.changes]
    return compute_net_changes(events, definition.find_identity(), derive_key_defaults(definition)), len(events)


def _read_unchanged_rows(
    audit: Audit, definition: TableDef, base: MirrorState, net: list[NetChange], count: int
) -> tuple[list[Row], bool]:
    """`count` rows of `base` that `net` does not change; False if there are fewer because of their size."""
    if base.delta_version < 0 or count <= 0:
        return [], True
    layout = audit.read_tables_at(base.hi).find(base.db, base.table) or definition
    gone = {change.key: change.copies if change.identity == "row" else None for change in net if change.op != "insert"}
    found: list[Row] = []
    size = 0
    is_stored = audit.paths.local is None
    for batch in _read_batches(audit.read_rows_of(base), layout, is_stored=is_stored):
        left = list(_without_keys(batch, layout, gone))
        found, size = found + left, size + (batch.nbytes if left else 0)
        if len(found) >= count or size > _MOST_BYTES:
            return found[:count], len(found) >= count
    return found, True


def _read_batches(data: ds.Dataset, layout: TableDef, *, is_stored: bool) -> Iterator[pa.RecordBatch]:
    columns = [*(column.name for column in layout.row_columns), Mirror.ROWKEY, Mirror.TEXT]
    for fragment in data.get_fragments():
        # No read-ahead: only the first rows of a possibly large file are needed.
        yield from fragment.to_batches(
            schema=data.schema,
            columns=columns,
            batch_size=_BATCH,
            batch_readahead=0,
            fragment_readahead=0,
            fragment_scan_options=_choose_options(fragment) if is_stored else _BIT_BY_BIT,
            use_threads=False,
        )


def _choose_options(stored: ds.ParquetFileFragment) -> ds.ParquetFragmentScanOptions:
    size = sum(group.total_byte_size for group in stored.row_groups)
    return FEW_REQUESTS if size <= _SMALL_BYTES else _BY_MEGABYTES


def _without_keys(batch: pa.RecordBatch, layout: TableDef, gone: dict[str, int | None]) -> Iterator[Row]:
    """The rows of `batch` without those in `gone`: by key, None = all rows, or how many are left to leave out."""
    texts = read_mirror_texts(layout, pa.Table.from_batches([batch]))
    for key, *values in zip(batch.column(Mirror.ROWKEY).to_pylist(), *texts.values(), strict=True):
        if key not in gone or gone[key] == 0:
            yield dict(zip(texts, values, strict=True))
            continue
        copies = gone[key]
        gone[key] = None if copies is None else copies - 1
