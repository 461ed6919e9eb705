"""Apply each kind of DDL job to the schema (tidb-binlog 5.4; peculiarities seen in captures: 1.14)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlake import tso
from binlake.errors import SchemaError
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.job import Action, DdlJob
from binlake.rows.schema.partitions import REARRANGING, Emptied, build_reorganized
from binlake.rows.schema.tables import SchemaTables


def apply_job(tables: SchemaTables, job: DdlJob, commit_ts: int = 0) -> None:
    """Change `tables` by a job that took effect; its binlog is at `commit_ts` (0: not known).

    Raises SchemaError if the job lacks data that it needs.
    """
    before = tables.get(job.table_id)
    _APPLY.get(job.type, _replace)(tables, job)
    if job.type in REARRANGING and before is not None:
        _note_reorganized(tables, job, commit_ts, before)


def note_rolled_back(tables: SchemaTables, job: DdlJob) -> None:
    """Note in `tables` that a job which was rolled back may have affected the log of row changes in the meantime."""
    before = tables.get(job.table_id)
    if job.type in REARRANGING and before is not None:
        _note_reorganized(tables, job, 0, before)


def _note_reorganized(tables: SchemaTables, job: DdlJob, commit_ts: int, before: TableDef) -> None:
    after = tables.find_table(job.table_id)
    if after is not None and after.find_identity().kind == "row":
        tables.note_reorganized(after.id, build_reorganized(job, commit_ts, before.raw))


def _create_schema(tables: SchemaTables, job: DdlJob) -> None:
    if job.db_info is None:
        raise _build_lacks_error(job, "DBInfo")
    tables.databases[job.db_info["id"]] = DbInfo.from_json(job.db_info)


def _recover_schema(tables: SchemaTables, job: DdlJob) -> None:
    _create_schema(tables, job)
    listed = _list_recovered_tables(job)
    infos = tables.dropped.pop(job.schema_id, None) if listed is None else listed
    if infos is None:
        raise _build_lacks_error(job, "the list of recovered tables, and the schema history no longer has the drop")
    for info in infos:
        tables.put(info, job.schema_id)


def _drop_schema(tables: SchemaTables, job: DdlJob) -> None:
    tables.drop_database(job.schema_id, job.schema_version)


def _create_view(tables: SchemaTables, job: DdlJob) -> None:
    # CREATE OR REPLACE VIEW gives the view a new id and writes no job that drops the old one.
    info = _require_info(job)
    db = tables.databases.get(job.schema_id)
    former = tables.find(db.name, info["name"]["O"]) if db else None
    if former is not None and former.id != info["id"]:
        tables.remove(former.id, job.schema_version)
    tables.put(info, job.schema_id)


def _drop_table(tables: SchemaTables, job: DdlJob) -> None:
    tables.remove(job.table_id, job.schema_version)


def _truncate(tables: SchemaTables, job: DdlJob) -> None:
    tables.remove(job.table_id, job.schema_version)
    tables.put(_require_info(job), job.schema_id)


def _replace(tables: SchemaTables, job: DdlJob) -> None:
    if job.table_info is None and job.type not in Action.__members__.values():
        raise SchemaError(
            f"DDL of the unknown kind {job.type} contains no table definition",
            hint="this TiDB is newer than the versions that Binlake supports: start again from a fresh copy made after"
            " this DDL",
            where=_describe_job(job),
        )
    tables.put(_fix_current_date(_require_info(job), tables, job), job.schema_id)


def _fix_current_date(info: Mapping[str, Any], tables: SchemaTables, job: DdlJob) -> Mapping[str, Any]:
    """`info`, with the day of the job in place of CURRENT_DATE as the origin default of a new column.

    TiDB fills such rows at each read with the reader's current day. Binlake uses a fixed day, that of the DDL in UTC.
    """
    dates = [c for c in info.get("cols") or () if c["type"]["Tp"] in t.DATES]
    open_days = [c["id"] for c in dates if str(c.get("origin_default")).upper() == "CURRENT_DATE"]
    if not open_days:
        return info
    known = tables.get(info["id"])
    former = {c.id: c.origin_default for c in (known.all_columns if known is not None else ())}
    today = tso.commit_date(job.finished_ts)
    days = {column: former.get(column) or today for column in open_days}
    cols = [{**c, "origin_default": days[c["id"]]} if c["id"] in days else c for c in info["cols"]]
    return {**info, "cols": cols}


_STEPS_AFTER = {Action.DROP_PARTITION: 2, Action.TRUNCATE_PARTITION: 0}
"""Number of versions from the first one at which TiDB no longer writes into the partitions to the job's last one."""


def _empty_partitions(tables: SchemaTables, job: DdlJob) -> None:
    info, before = _require_info(job), tables.get(job.table_id)
    if before is None or not before.partition_ids or not info.get("partition"):
        # The feeder's definitions may lack partitions. No transaction of an older version follows its DDL.
        tables.put(info, job.schema_id)
        return
    now = {d["id"] for d in info["partition"]["definitions"]}
    gone = frozenset(i for i in before.partition_ids if i not in now)
    version = job.schema_version - _STEPS_AFTER[Action(job.type)]
    tables.put(info, job.schema_id, Emptied(version, gone, before.raw["partition"]))


def _change_id(tables: SchemaTables, job: DdlJob) -> None:
    # PARTITION BY and REMOVE PARTITIONING copy the table under a new id; late changes of the old id belong to the new.
    info = _require_info(job)
    if info["id"] != job.table_id:
        tables.replace_id(job.table_id, info["id"])
    tables.put(info, job.schema_id)


def _create_tables(tables: SchemaTables, job: DdlJob) -> None:
    for info in job.multiple_table_infos:
        tables.put(info, job.schema_id)


def _exchange_partition(tables: SchemaTables, job: DdlJob) -> None:
    """The plain table (job.table_id) and one partition swap ids; the job names only the partitioned table (1.14)."""
    info = _require_info(job)
    before, plain = tables.get(info["id"]), tables.get(job.table_id)
    if before is None or plain is None:
        raise SchemaError(
            "EXCHANGE PARTITION names a table that the schema history does not have", where=_describe_job(job)
        )
    now = {d["id"] for d in info["partition"]["definitions"]}
    freed = [i for i in before.partition_ids if i not in now]
    if len(freed) != 1:
        raise SchemaError(f"EXCHANGE PARTITION freed the partition ids {freed}, not one", where=_describe_job(job))
    if _list_column_types(plain.raw) == _list_column_types(info):
        tables.replace_id(plain.id, info["id"])
    else:
        tables.remove_silently(plain.id)
    tables.put({**plain.raw, "id": freed[0]}, plain.db_id)
    emptied = Emptied(job.schema_version, frozenset(freed), before.raw["partition"], heir=freed[0])
    tables.put(info, before.db_id, emptied)


def _list_column_types(info: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(c["id"], c["type"]["Tp"]) for c in info["cols"]]


def _rename_tables(tables: SchemaTables, job: DdlJob) -> None:
    """Rename several tables. MultipleTableInfos has the final names, one per pair of the statement's text; only the
    text has the target databases."""
    targets = _rename_targets(tables, job)
    for info in {i["id"]: i for i in job.multiple_table_infos}.values():
        tables.put(info, _find_database_id(tables, job, targets[info["id"]]))


def _rename_targets(tables: SchemaTables, job: DdlJob) -> dict[int, str]:
    pairs = rename_pairs(job.query)
    if len(pairs) != len(job.multiple_table_infos):
        raise SchemaError("RENAME TABLE names a different number of tables than its job", where=_describe_job(job))
    sources = [db for (db, _), _ in pairs if db] + [db for _, (db, _) in pairs if db]
    default = _find_default_db(tables, job, pairs) or job.schema_name or (sources[0] if sources else "")
    return {info["id"]: target[0] or default for (_, target), info in zip(pairs, job.multiple_table_infos, strict=True)}


_Name = tuple[str, str]


def _find_default_db(tables: SchemaTables, job: DdlJob, pairs: list[tuple[_Name, _Name]]) -> str:
    # The session's database is that of the first source table that the text names without a database.
    seen: set[int] = set()
    for ((db, _), _), info in zip(pairs, job.multiple_table_infos, strict=True):
        table = tables.get(info["id"])
        if not db and table is not None and table.id not in seen:
            return table.db
        seen.add(info["id"])
    return ""


# The text depends on the session's SQL mode, so ANSI_QUOTES is possible.
_QUOTED = r'`(?:[^`]|``)+`|"(?:[^"]|"")+"|[^\s`".,;]+'
_PAIR = re.compile(rf"(?:({_QUOTED})\s*\.\s*)?({_QUOTED})\s+TO\s+(?:({_QUOTED})\s*\.\s*)?({_QUOTED})", re.IGNORECASE)
_RENAME = re.compile(r"^\s*RENAME\s+TABLES?\s+", re.IGNORECASE)


def rename_pairs(query: str) -> list[tuple[_Name, _Name]]:
    """((db, table), (db, table)) of each `old TO new` in a RENAME TABLE statement; db is "" if the text names none."""
    text = _RENAME.sub("", query, count=1)
    pairs = [tuple(_unquote(part or "") for part in match.groups()) for match in _PAIR.finditer(text)]
    return [((a, b), (c, d)) for a, b, c, d in pairs]


def _unquote(name: str) -> str:
    quote = name[:1]
    return name[1:-1].replace(quote * 2, quote) if quote in ("`", '"') else name


def _find_database_id(tables: SchemaTables, job: DdlJob, name: str) -> int:
    for db in tables.databases.values():
        if fold_name(db.name) == fold_name(name):
            return db.id
    raise SchemaError(f"RENAME TABLE into the unknown database {name!r}", where=_describe_job(job))


def _list_recovered_tables(job: DdlJob) -> Sequence[Mapping[str, Any]] | None:
    args = job.raw_args
    listed = args[0].get("RecoverTabsInfo") if isinstance(args, list) and args and isinstance(args[0], dict) else None
    return None if listed is None else [entry["TableInfo"] for entry in listed]


def _change_nothing(_tables: SchemaTables, _job: DdlJob) -> None:
    # TiDB refuses FLASHBACK CLUSTER across a DDL, so definitions do not change. Rows do: see window.ddls.
    return


def _require_info(job: DdlJob) -> Mapping[str, Any]:
    if job.table_info is None:
        raise _build_lacks_error(job, "TableInfo")
    return job.table_info


def _build_lacks_error(job: DdlJob, what: str) -> SchemaError:
    return SchemaError(f"DDL job ({job.label}) lacks {what}", where=_describe_job(job))


def _describe_job(job: DdlJob) -> dict[str, object]:
    return {"job_id": job.id, "action": job.label, "schema_version": job.schema_version, "table_id": job.table_id}


_APPLY: dict[int, Callable[[SchemaTables, DdlJob], None]] = {
    Action.CREATE_SCHEMA: _create_schema,
    Action.SCHEMA_CHARSET: _create_schema,
    Action.RECOVER_SCHEMA: _recover_schema,
    Action.DROP_SCHEMA: _drop_schema,
    Action.CREATE_VIEW: _create_view,
    Action.DROP_TABLE: _drop_table,
    Action.DROP_VIEW: _drop_table,
    Action.DROP_SEQUENCE: _drop_table,
    Action.TRUNCATE_TABLE: _truncate,
    Action.DROP_PARTITION: _empty_partitions,
    Action.TRUNCATE_PARTITION: _empty_partitions,
    Action.CREATE_TABLES: _create_tables,
    Action.EXCHANGE_PARTITION: _exchange_partition,
    Action.RENAME_TABLES: _rename_tables,
    Action.PARTITION_BY: _change_id,
    Action.REMOVE_PARTITIONING: _change_id,
    Action.FLASHBACK_CLUSTER: _change_nothing,
}
