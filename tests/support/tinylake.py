"""A lake of a few windows made without Spark, and a target filled by plain SQL from the model, for readers of both.

The core's own functions decode rows, plan DDL and maintain mirrors. The target's rows come from the workload's model,
so no code under test wrote them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from support.mariadb import MariaDb, execute
from support.positions import accept_rows
from support.windows import target_of
from support.workload import Row, Workload

from binlake.changes.net import RowEvent, compute_net_changes
from binlake.config import Replication
from binlake.ddl.ddls import add_injections, build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl, WindowDefinitions, derive_key_defaults
from binlake.ddl.sharedrows import add_columns, list_extras
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect.replacement import Injection
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import DDL
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.mirror import MirrorVersions, apply_component, plan_mirrors
from binlake.rows.codec import MutationBatch
from binlake.rows.schema import DdlJob, SchemaState, TableDef, WindowDdl
from binlake.rows.schema import mysqltypes as t
from binlake.rules import Rules
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import create_tables
from binlake.window.derived import Merged, MergeManifest
from binlake.window.manifest import WindowManifest
from binlake.wire import binlog_pb2 as pb

CLUSTER_ID = 7
Name = tuple[str, str]


class TinyLake:
    """Windows of `workload` in a lake below `root`, landed, merged and mirrored; `config` as in a replication file."""

    def __init__(self, root: Path, workload: Workload, config: Mapping[str, Any]) -> None:
        self._root, self._config = root, dict(config)
        raw = {"name": "demo", "lake": {"path": str(root / "lake")}, **config}
        self.replication = Replication.model_validate(raw)
        self.workload = workload
        self.paths = LakePaths.of(self.replication)
        self.hi = 0
        self._history, self._log = SchemaHistory(self.paths), WindowLog(self.paths)
        self._rules = Rules.of(self.replication)

    def copy(self, root: Path, workload: Workload, config: Mapping[str, Any]) -> TinyLake:
        """The same lake copied below `root`, with more `config`; continues with `workload`."""
        shutil.copytree(self._root / "lake", root / "lake")
        made = TinyLake(root, workload, {**self._config, **config})
        made.hi = self.hi
        return made

    def land(self, *, mirrored: bool = True) -> int:
        """Land a window with everything logged since the last one; return its end."""
        lo, self.hi = self.hi, self.workload.clock()
        if not self._history.exists():
            self._history.begin(lo, SchemaState().fold(self._logged(0, lo)[2]))
        base = self._history.read_state_at(lo)
        rows, binlogs, jobs = self._logged(lo, self.hi)
        self._history.append(self.hi, jobs)
        planned = plan_ddls(base, binlogs, jobs, self._rules)
        schemas = build_window_schemas(base, binlogs, jobs)
        mutations = self._mutations(rows, schemas)
        self._write(mutations, planned, lo)
        if mirrored:
            self._mirror(
                lo, self.hi, WindowDefinitions(TargetTables(base, Naming(self._rules)), planned), planned, mutations
            )
        return self.hi

    def inject(self, lo: int, injection: Injection) -> None:
        """Add a statement for the target only to the window that starts at `lo`, which must be the last one landed."""
        rows = [_ddl_row(f"{lo}-{self.hi}", ddl) for ddl in add_injections([], [injection], lo, self.hi, 0)]
        write_deltalake(
            self.paths.locate_table("ddl"), pa.Table.from_pylist(rows, DDL.build_arrow_schema()), mode="append"
        )

    def _logged(self, lo: int, hi: int) -> tuple[list[Any], list[WindowDdl], list[tuple[int, DdlJob]]]:
        prewrites = {b.start_ts: b for b in self.workload.logged if b.tp == pb.Prewrite}
        commits = {b.commit_ts: prewrites[b.start_ts] for b in self.workload.logged if b.tp == pb.Commit}
        inside = sorted((ts, prewrite) for ts, prewrite in commits.items() if lo < ts <= hi) if commits else []
        ddls = [WindowDdl(ts, p.start_ts, p.ddl_job_id, 5, p.ddl_query.decode()) for ts, p in inside if p.ddl_job_id]
        places = {ddl.job_id: ddl.commit_ts for ddl in ddls}
        jobs = [(places[job["id"]], DdlJob.from_dict(job)) for job in self.workload.jobs if job["id"] in places]
        rows = [(ts, p.start_ts, p.SerializeToString()) for ts, p in inside if not p.ddl_job_id]
        return rows, ddls, jobs

    def _mutations(self, rows: Sequence[Any], schemas: Any) -> pa.Table:
        batch = MutationBatch(self._rules.route, self._rules.list_passed_kinds)
        for commit_ts, start_ts, payload in rows:
            batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        made = add_columns(batch.take(), list_extras(schemas, Naming(self._rules)))
        return pa.Table.from_batches([made])

    def _write(self, mutations: pa.Table, planned: Sequence[LandedDdl], lo: int) -> None:
        write_deltalake(self.paths.locate_table("mutation"), mutations, mode="append", partition_by=["commit_date"])
        rows = [_ddl_row(f"{lo}-{self.hi}", ddl) for ddl in planned]
        write_deltalake(
            self.paths.locate_table("ddl"), pa.Table.from_pylist(rows, DDL.build_arrow_schema()), mode="append"
        )
        manifest = WindowManifest("demo", CLUSTER_ID, lo, self.hi, "", (), 0, 0, 0, 0, 0, "-")
        self._log.record(WindowEvent("land", lo, self.hi, "done", manifest=manifest.to_json()))
        merged = Merged(mutations.num_rows, len(planned), whole=True, windows=(manifest.window,))
        sealed = MergeManifest("demo", lo, self.hi, merged).to_json()
        self._log.record(WindowEvent("merge", lo, self.hi, "done", mutations.num_rows, manifest=sealed))

    def _mirror(
        self, lo: int, hi: int, definitions: WindowDefinitions, ddls: list[LandedDdl], mutations: pa.Table
    ) -> None:
        events: dict[Name, list[RowEvent]] = {}
        for row in mutations.to_pylist(maps_as_pydicts="strict"):
            event = RowEvent(*(row[name] for name in ("commit_ts", "start_ts", "seq", "op", "before", "after")))
            events.setdefault((row["db"], row["table"]), []).append(event)
        versions = MirrorVersions(self.paths)
        plan = plan_mirrors(lo, hi, definitions, ddls, list(events), versions.read_latest())
        for component in plan.components:
            found = []
            for place, table in sorted(component.tables.items()):
                since, until = component.segments.find_bounds(place.segment)
                own = [event for event in events.get(place.name, []) if since <= event.commit_ts < until]
                net = compute_net_changes(own, table.find_identity(), derive_key_defaults(table))
                found += [(place, pa.Table.from_pylist([_net_row(one) for one in net], _NET))] if net else []
            versions.record(apply_component(component, self.paths, 30, found).versions)
        self._log.record(WindowEvent("mirror", lo, hi, "done", sink="mirror"))


_MAP = pa.map_(pa.string(), pa.string())
_NET = pa.schema([
    ("op", pa.string()), ("before", _MAP), ("after", _MAP), ("copies", pa.int64()), ("last_commit_ts", pa.int64()),
])  # fmt: skip


def _net_row(net: Any) -> dict[str, Any]:
    images = {side: None if image is None else list(image.items())
              for side, image in (("before", net.before), ("after", net.after))}  # fmt: skip
    return {"op": net.op, **images, "copies": net.copies, "last_commit_ts": net.last_commit_ts}


def _ddl_row(window: str, ddl: LandedDdl) -> dict[str, Any]:
    row = {name: getattr(ddl, name, None) for name in DDL.list_column_names()}
    return {
        **row,
        "window": window,
        "tables": ddl.touched,
        "before": ddl.before.to_json(),
        "after": ddl.after.to_json(),
    }


def fill(server: MariaDb, workload: Workload, tables: Sequence[Name] | None = None) -> None:
    """Create the workload's databases and tables on `server`, and insert the model's rows."""
    names = list(workload.rows) if tables is None else list(tables)
    for db in dict.fromkeys(db for db, _ in names):
        execute(server, f"CREATE DATABASE IF NOT EXISTS `{db}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    for db, name in names:
        job = next(job for job in workload.jobs if job["query"].startswith(f"CREATE TABLE `{name}`"))
        execute(server, f"USE `{db}`", job["query"])
        put(server, workload.table(db, name), workload.rows[db, name])


def put(server: MariaDb, table: TableDef, rows: Sequence[Row]) -> None:
    """INSERT rows of canonical texts."""
    if not rows:
        return
    columns = table.row_columns
    names = ", ".join(f"`{column.name.replace('`', '``')}`" for column in columns)
    sql = f"INSERT INTO `{table.db}`.`{table.name.replace('`', '``')}` ({names}) VALUES "
    values = [[bytes.fromhex(text) if column.is_binary and column.tp != t.BIT and text is not None
               else int(text, 16) if column.tp == t.BIT and text is not None else text
               for column in columns for text in [row[column.name]]] for row in rows]  # fmt: skip
    marks = f"({', '.join(['%s'] * len(columns))})"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for start in range(0, len(values), 500):
            part = values[start : start + 500]
            cursor.execute(sql.replace("%", "%%") + ", ".join([marks] * len(part)), [v for row in part for v in row])


def set_checkpoint(server: MariaDb, ts: int, *, consistent: bool = True, task: str = "demo") -> None:
    """Write the target's checkpoint row and its owner."""
    session = TargetSession(target_of(server))
    create_tables(session, "tidb_binlog")
    session.close()
    told = f'{{"consistent":{str(consistent).lower()},"commitTS":{ts},"ts-map":{{}}}}'
    execute(
        server,
        f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER_ID}, '{told}')",
        f"REPLACE INTO tidb_binlog.binlake_owner (clusterID, task, config_hash) VALUES ({CLUSTER_ID}, '{task}', '')",
    )
    accept_rows(server)


def target_config(server: MariaDb, **more: Any) -> dict[str, Any]:
    """The section `target` for `server`."""
    return {"db-type": server.name, "host": server.host, "port": server.port, "user": server.user, **more}


def replication_toml(replication: Replication) -> str:
    """The replication as the text of a file, with the settings that these tests use."""
    target, sql = replication.target, replication.source.sql
    assert target is not None
    lines = [f'name = "{replication.name}"', "[lake]", f'path = "{replication.lake.path}"', "[target]"]
    lines += [f'db-type = "{target.db_type}"', f'host = "{target.host}"', f"port = {target.port}",
              f'user = "{target.user}"', f"txn-batch = {target.batch_rows}"]  # fmt: skip
    if sql is not None:
        lines += ["[source.sql]", f'host = "{sql.host}"', f"port = {sql.port}", f'user = "{sql.user}"']
    return "\n".join([*lines, ""])
