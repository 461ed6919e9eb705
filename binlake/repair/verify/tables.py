"""The tables that a verify compares: the replicated tables, as the target must have them at a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from binlake.config import Replication
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect import derive_bytewise_table
from binlake.errors import ConfigError
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.lake.windowlog import WindowLog
from binlake.mirror.versions import MirrorVersions
from binlake.rows.schema import SchemaState, TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rules import Rules

Name = tuple[str, str]


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
