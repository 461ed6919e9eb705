"""Applies a range of binlog files to a database window by window, each through the guarded apply, exactly once.

Rule: the whole range is read and verified before the first write. The checkpoint under the run's name is its progress:
a killed run resumes where it stopped, and repeating a complete run does nothing. Sources: tidb-binlog 6.1, S0-01.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from binlake.binlogfile.folder import BinlogIndex, read_index
from binlake.binlogfile.reading import Item, read_items
from binlake.common.filestore import StoredFiles
from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.dialect.replacement import empties_table
from binlake.errors import CheckpointConflict, ConfigError, TargetRefused
from binlake.extras.reparo.ddl import ReparoTables, TargetDdl, add_hint, map_file_ddl
from binlake.extras.reparo.settings import ReparoSettings
from binlake.extras.reparo.statements import DdlStatements, RowStatements, Task, WindowRows, read_rows
from binlake.extras.reparo.windows import FileWindow, cut_windows
from binlake.rules import Rules
from binlake.rules.tables import TableFilter
from binlake.statements import BatchLimits
from binlake.target import ApplyResult, ExpectedState, Hook, TargetPosition, TargetSession, apply_window
from binlake.target.apply.position import read_position
from binlake.target.base import BaseTask, find_base, load_base
from binlake.target.claim.progress import TargetProgress
from binlake.target.ddl.intents import DdlIntent
from binlake.target.definitions.definitions import read_definitions
from binlake.target.definitions.forms import Name

log = structlog.get_logger(__name__)

Say = Callable[[str], None]
"""Outputs a line of progress for people."""


@dataclass
class Restored:
    """The result of a run: it applied (`begin`, `end`]; everything at or below `begin` was already applied.

    `windows`, `rows`, `ddls`: numbers; `skipped`: DDL without a statement at the target, for people.
    """

    begin: int
    end: int
    windows: int = 0
    rows: int = 0
    ddls: int = 0
    skipped: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """`applied`, or `already` if nothing was left to do."""
        return "applied" if self.windows else "already"


def restore(
    settings: ReparoSettings, store: StoredFiles, *, hook: Hook | None = None, say: Say = lambda _: None
) -> Restored:  # fmt: skip
    """Apply the range of `settings` from `store` to its target, continuing after an earlier run of this name.

    Raises what `read_items`, `apply_window` and the mapping of DDL raise, CheckpointConflict for a gap between an
    earlier run's range and this one.
    """
    index = read_index(store)
    settings, target = settings.with_zone_of(index), settings.build_target()
    until = _load_base(settings, store, target, hook, say) if settings.base else None
    position = read_position(target, settings.name, settings.cluster_id)
    lo = _begin(settings, index, position)
    if settings.stop and lo >= settings.stop and position.opened is None:
        return Restored(lo, lo)
    if until is None:
        until = _require_whole(settings, store, lo, say)
    restored, items = Restored(lo, lo), _read(settings, store, lo, until)
    with closing(TargetSession(target)) as session:
        run = _Run(settings, target, session, hook, say)
        for window in cut_windows(items, lo, until, settings.window_rows, run.choice.keeps, position.window):
            run.apply(window, restored)
    return restored


def _load_base(
    settings: ReparoSettings, store: StoredFiles, target: TargetSection, hook: Hook | None, say: Say
) -> int | None:
    """Load the dump unless it is loaded already, after checking the files that follow it. Returns as `_require_whole`.

    None if the files were not read, because an earlier run already began to load the dump.
    """
    base = find_base(Path(settings.base), settings.base_ts or None)
    if settings.stop and base.commit_ts > settings.stop:
        raise ConfigError(
            "the base is newer than the end of the range",
            where={"base": base.commit_ts, "stop": settings.stop},
            hint="use an older dump: files can only move it forward",
        )
    begun = read_position(target, settings.name, settings.cluster_id).commit_ts
    until = _require_whole(settings, store, base.commit_ts, say) if begun in (None, 0) else None
    task = BaseTask(
        settings.name, settings.cluster_id, settings.compute_data_hash(), Rules(tables=settings.build_table_filter())
    )
    done = load_base(target, task, base, hook=hook)
    say(f"{done.rows:,} rows of the dump, taken at {base.commit_ts}: {done.state}")
    left_out = [*(f"view {db}.{name}" for db, name in base.dump.views), *base.dump.left_out]
    if left_out:
        say(f"not loaded: {', '.join(left_out)}")
    return until


def _begin(settings: ReparoSettings, index: BinlogIndex | None, position: TargetPosition) -> int:
    """The commit_ts after which the run continues; 0: with the first file. Raises CheckpointConflict for a gap."""
    if position.window is not None:
        return position.window[0]
    if position.commit_ts is None:
        return index.lo if index is not None and not settings.start else max(settings.start - 1, 0)
    if settings.start > position.commit_ts + 1:
        raise CheckpointConflict(
            "an earlier run of this name ended before the start of this one",
            where={"name": settings.name, "ended": position.commit_ts, "start": settings.start},
            hint="omit the start to continue where the earlier run ended; or, for another base at the target, use a new"
            " --name",
        )
    return position.commit_ts


def _require_whole(settings: ReparoSettings, store: StoredFiles, lo: int, say: Say) -> int:
    """Read the whole range once, before the first write. Returns the commit_ts up to which it is verified.

    Without an index, that is the last item's commit_ts. Raises as `read_items`.
    """
    index = read_index(store)
    until = settings.stop if index is None else min(index.hi, settings.stop or index.hi)
    count, last = 0, lo
    for item in _read(settings, store, lo, settings.stop or until or None):
        count, last = count + 1, item.commit_ts
    say(f"{count:,} transactions and DDL to apply")
    return last if index is None else until


def _read(settings: ReparoSettings, store: StoredFiles, lo: int, until: int | None) -> Iterator[Item]:
    """All items above `lo` up to `until` (None: the end). Fails if files are missing now; newer items are ignored."""
    first = lo + 1 if lo else 0
    return read_items(store, first, until, torn_end=settings.torn_end, whole_range=True)


class _Run:
    """The windows of one run, in order."""

    def __init__(
        self,
        settings: ReparoSettings,
        target: TargetSection,
        session: TargetSession,
        hook: Hook | None,
        say: Say,
    ) -> None:
        self.choice: TableFilter = settings.build_table_filter()
        self._settings, self._target, self._session = settings, target, session
        self._hook, self._say = hook, say
        self._zone = settings.zone
        self._tables = ReparoTables(session, target.db_type)

    def apply(self, window: FileWindow, restored: Restored) -> None:
        """Apply `window` and count it in `restored`."""
        position = read_position(self._target, self._settings.name, self._settings.cluster_id)
        task = self._build_task(position)
        source: DdlStatements | RowStatements
        if window.ddls:
            self._tables.forget()
            source = self._build_ddl_statements(task, window, position)
        else:
            source = self._build_row_statements(task, window, position)
        try:
            result = apply_window(self._target, source.build_manifest(), source, hook=self._hook)
        except TargetRefused as error:
            if not window.ddls:
                raise
            # The hint for finalize does not apply to reparo.
            raise add_hint(error) from error
        if window.ddls:
            self._tables.forget()
        self._count_window(window, source, result, restored)

    def _build_task(self, position: TargetPosition) -> Task:
        limits = BatchLimits.of(self._target.batch_rows, position.max_packet)
        settings = self._settings
        return Task(settings.name, settings.cluster_id, settings.compute_data_hash(), self._target.db_type, limits)

    def _build_row_statements(self, task: Task, window: FileWindow, position: TargetPosition) -> RowStatements:
        found = read_rows(window.transactions, self._tables, self._zone, self.choice.keeps)
        forms = read_definitions(self._session, found.tables, task.dialect).tables
        source = RowStatements(task, window, found, ExpectedState(tables=forms), position.forms == "plain")
        opened = position.opened
        if opened is None or opened.is_for(source.build_manifest()):
            return source
        # The open window must be applied in its original form, which only its digest reveals.
        other = replace(source, plain=not source.plain)
        if opened.is_for(other.build_manifest()):
            return other
        raise _build_other_content_error(opened)

    def _build_ddl_statements(self, task: Task, window: FileWindow, position: TargetPosition) -> DdlStatements:
        opened = position.opened

        def read() -> WindowRows:
            self._tables.forget()
            return read_rows(window.transactions, self._tables, self._zone, self.choice.keeps)

        source = DdlStatements(task, window, tuple(self._map_ddls(window, opened, task.dialect)), read)
        if opened is not None and not opened.is_for(source.build_manifest()):
            raise _build_other_content_error(opened)
        return source

    def _map_ddls(self, window: FileWindow, opened: TargetProgress | None, dialect: Dialect) -> Iterator[TargetDdl]:
        """The statements of each DDL. If it was begun, those of its intent, as the target may have its result."""
        gone: set[Name] = set()
        for segment, ddl in enumerate(window.ddls, 1):
            if opened is not None and opened.segment > segment:
                yield TargetDdl((), "it ran", (), None, repeatable=True)
            elif opened is not None and opened.segment == segment and opened.ddl_state != "":
                yield _read_begun_ddl(opened)
            else:
                mapped = map_file_ddl(ddl, self._tables, dialect, gone)
                gone |= set(mapped.touched) if mapped.after is not None else set()
                yield mapped

    def _count_window(
        self, window: FileWindow, source: DdlStatements | RowStatements, result: ApplyResult, restored: Restored
    ) -> None:
        restored.windows += 1
        restored.end = window.hi
        restored.rows += result.rows
        restored.ddls += result.ddls
        if isinstance(source, DdlStatements):
            for ddl, mapped in zip(window.ddls, source.mapped, strict=True):
                if not mapped.sql:
                    restored.skipped += (f"{window.hi}: {mapped.reason}: {ddl.sql[:200]}",)
                    log.warning("ddl_skipped", commit_ts=str(window.hi), reason=mapped.reason)
                elif ddl.depends_on_zone:
                    log.warning("ddl_time_read_as_utc", commit_ts=str(window.hi), table=f"{ddl.db}.{ddl.table}")
        self._say(f"{window.hi}: {restored.rows:,} rows, {restored.ddls:,} DDL")


def _read_begun_ddl(opened: TargetProgress) -> TargetDdl:
    """A DDL that was begun, taken from its intent, because the target may already have its result."""
    intent = DdlIntent.from_json(opened.ddl_expected or "")
    sql = tuple((opened.ddl_sql or "").split(";\n"))
    return TargetDdl(sql, "", intent.touched, intent.after, empties_table(sql[-1]))


def _build_other_content_error(opened: TargetProgress) -> CheckpointConflict:
    return CheckpointConflict(
        "the window open on the target differs from the one that this run's files, tables and settings give",
        where={"window": f"{opened.open_lo}-{opened.open_hi}", "name": opened.replication},
        hint="run it with the files, filters, txn-batch and time-zone with which it was begun, on tables that were not"
        " changed since",
    )
