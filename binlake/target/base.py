"""Loads a dump into an empty target as one window (0, B], through the same guarded apply as every other window."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, TargetRefused
from binlake.mysqlbinlog.dumpfolder import DumpFolder, read_dump_folder, read_dump_position
from binlake.rules import Rules
from binlake.statements.literal import quote_qualified_name
from binlake.target.apply.apply import apply_window
from binlake.target.apply.position import TargetPosition, read_position
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.dump import DumpStatements
from binlake.target.segments import ApplyResult, Hook
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import StopFlag, TargetSession
from binlake.window.manifest import ApplyManifest


@dataclass(frozen=True)
class BaseDump:
    """A dump in `folder`, taken at `commit_ts`."""

    folder: Path
    commit_ts: int

    @cached_property
    def dump(self) -> DumpFolder:
        """The files of the dump. Raises ConfigError."""
        return read_dump_folder(self.folder)


@dataclass(frozen=True)
class BaseTask:
    """The replication that a base is loaded for: its progress row at the target (`name`, `cluster_id`) and its rules.

    `config_hash`: hash of the settings that decide the rows; `new_collation`: the source's setting; `marks`: given with
    loopback control.
    """

    name: str
    cluster_id: int
    config_hash: str
    rules: Rules
    new_collation: bool = True
    marks: LoopbackMarks | None = None

    @classmethod
    def of(cls, replication: Replication, cluster_id: int) -> BaseTask:
        """The task of `replication` with the source cluster `cluster_id`. Raises ConfigError."""
        marks = LoopbackMarks.of(replication.loopback, replication.name)
        rules, new = Rules.of(replication), replication.source.new_collation
        return cls(replication.name, cluster_id, replication.compute_data_hash(), rules, new, marks)


def find_base(folder: Path, commit_ts: int | None = None) -> BaseDump:
    """The dump in `folder`. Give `commit_ts` if its metadata has none. Raises ConfigError."""
    try:
        place = read_dump_position(folder).commit_ts
    except ConfigError:
        # An unfinished dump has no metadata at all.
        if commit_ts is None or not (folder / "metadata").is_file():
            raise
        place = 0
    if place and commit_ts not in (None, place):
        raise ConfigError(
            "the dump's metadata has another commit_ts",
            where={"folder": folder, "metadata": place, "base-ts": commit_ts},
            hint="leave --base-ts out: it is for dumps of MySQL and MariaDB",
        )
    place = place or commit_ts or 0
    if not place:
        raise ConfigError(
            "the dump is from MySQL or MariaDB: its metadata has a position in the source's log, not a commit_ts",
            where={"folder": folder},
            hint="give --base-ts: the commit_ts of the last transaction that the dump contains",
        )
    return BaseDump(folder, place)


def load_base(
    target: TargetSection, task: BaseTask, base: BaseDump, *, hook: Hook | None = None, stop: StopFlag | None = None
) -> ApplyResult:
    """Load the dump into `target` and set the checkpoint of `task` to the dump's commit_ts.

    The result's state is `already` if the checkpoint is at or past that commit_ts. Raises ConfigError for a dump that
    cannot be loaded completely, CheckpointConflict for a target that has rows in the dump's tables or another
    checkpoint, and what `apply_window` raises.
    """
    position = read_position(target, task.name, task.cluster_id)
    if _is_loaded(position, base):
        return ApplyResult("already", 0, base.commit_ts)
    statements = DumpStatements(base.dump, base.commit_ts, task.rules, target.db_type, new_collation=task.new_collation)
    _require_empty_target(position, base, target, statements)
    # Checked before the first write: an incompletely copied dump is refused as a whole.
    rows, digest = statements.check_rows(position.max_packet)
    manifest = ApplyManifest(
        task.name, "sql", task.cluster_id, 0, base.commit_ts, task.config_hash, "plain", "", "",
        digest, len(statements.list_segments()), rows, 0, (),
    )  # fmt: skip
    # Whatever the configured mode: a base is too large for one transaction, and its rows have no order.
    loading = target.model_copy(update={"mode": "parallel"})
    try:
        return apply_window(loading, manifest, statements, hook=hook, stop=stop, marks=task.marks)
    except TargetRefused as error:
        error.hint = "fix what the target refuses, and run it again with the same dump: it continues where it stopped"
        raise


def _is_loaded(position: TargetPosition, base: BaseDump) -> bool:
    return position.window is None and position.commit_ts is not None and position.commit_ts >= base.commit_ts


def _require_empty_target(
    position: TargetPosition, base: BaseDump, target: TargetSection, statements: DumpStatements
) -> None:
    """Require a target with no row of the dump, or with this load in progress. Raises CheckpointConflict."""
    opened = position.window
    if opened == (0, base.commit_ts):
        return
    if opened is not None or position.commit_ts is not None:
        raise CheckpointConflict(
            "the target already has a checkpoint, which is older than the dump",
            where={"commit_ts": position.commit_ts, "dump": base.commit_ts, "folder": base.folder},
            hint="restore without --base, from its checkpoint on; or use an empty target",
        )
    with closing(TargetSession(target)) as session:
        filled = [".".join(name) for name in statements.list_target_names() if _has_rows(session, *name)]
    if filled:
        raise CheckpointConflict(
            "tables of the dump already have rows at the target",
            where={"target": f"{target.host}:{target.port}", "tables": ", ".join(filled[:5]), "count": len(filled)},
            hint="use an empty target; or, if these are the dump's rows, give --base the dump's commit_ts",
        )


def _has_rows(session: TargetSession, db: str, table: str) -> bool:
    try:
        return session.fetch_value(f"SELECT 1 FROM {quote_qualified_name(db, table)} LIMIT 1") is not None
    except TargetRefused as error:
        if get_error_code(error) in MISSING:
            return False
        raise
