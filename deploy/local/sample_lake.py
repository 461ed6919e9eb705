"""A lake made without Spark, source or target, for the pages' tests, pictures and benchmark.

The core's own code writes rows, definitions and mirrors, so that audits read what the stages would write.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from binlake import tso
from binlake.changes.net import RowEvent, compute_net_changes
from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus
from binlake.ddl.definitions import Cell, SegmentTable, WindowDefinitions
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.tables import BINLOG, DDL, MUTATION, LakeTable
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.mirror import MirrorVersions, apply_component, plan_mirrors
from binlake.pipeline import LAKE, SQL
from binlake.rows.codec import format_key_text
from binlake.rows.schema import DbInfo, DdlJob, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.window.manifest import format_window_name

Row = Mapping[str, str | None]
_MAP = pa.map_(pa.string(), pa.string())
_NET = pa.schema(
    [("op", pa.string()), ("before", _MAP), ("after", _MAP),
     ("copies", pa.int64()), ("last_commit_ts", pa.int64())]
)  # fmt: skip
_STAGES = tuple(
    (stage.name, stage.sink or "") for stage in (*LAKE.stages, *SQL.stages) if stage.after and not stage.optional
)
DAYS = 400


@dataclass(frozen=True)
class SampleChange:
    """One row change of `table`; commit_ts and start_ts are TSOs, images are canonical text."""

    commit_ts: int
    start_ts: int
    table: str
    before: Row | None
    after: Row | None
    seq: int = 0

    @property
    def op(self) -> str:
        """The operation, as in the table `mutation`."""
        return "insert" if self.before is None else "delete" if self.after is None else "update"


@dataclass(frozen=True)
class AlterSample:
    """A DDL that replaces the table of the same name by `after`."""

    commit_ts: int
    sql: str
    after: TableDef


@dataclass
class SampleLake:
    """Windows of the database `db`, appended one by one."""

    paths: LakePaths
    db: str = "shop"
    tables: dict[str, TableDef] = field(default_factory=dict)
    version: int = 1

    def begin(self, lo: int, *tables: TableDef) -> None:
        """Start the lake after `lo` with empty `tables`."""
        self.tables = {table.name: table for table in tables}
        state = {"version": self.version, "commit_ts": str(lo)}
        rows = [("state", 0, json.dumps(state)), ("schema", 2, json.dumps(_build_database(self.db)))]
        rows += [("table", x.id, json.dumps({"schema_id": 2, "info": x.raw})) for x in tables]
        SchemaHistory(self.paths).begin(lo, SchemaState.from_rows(rows))
        WindowLog(self.paths).record(WindowEvent("start", lo, lo, "done"))

    def add_window(
        self, lo: int, hi: int, changes: Sequence[SampleChange] = (), alter: AlterSample | None = None,
        run_id: str = "", *, applied: bool = True,
    ) -> None:  # fmt: skip
        """Land, merge, apply (unless not `applied`) and mirror (lo, hi]."""
        self._append(BINLOG, list(self._build_binlogs(changes, alter)))
        self._append(MUTATION, [self._build_mutation(change) for change in changes])
        if alter is not None:
            self._add_ddl(lo, hi, alter)
        log = WindowLog(self.paths)
        for number, (stage, sink) in enumerate(_STAGES if applied else _STAGES[:2]):
            log.record(WindowEvent(stage, lo, hi, "done", len(changes), 0.4 + 0.1 * number, run_id, sink))
        self._mirror_window(lo, hi, changes)
        log.record(WindowEvent("mirror", lo, hi, "done", len(changes), 0.8, run_id, "mirror"))

    def _build_binlogs(self, changes: Sequence[SampleChange], alter: AlterSample | None) -> Iterable[dict[str, Any]]:
        moments = {(change.commit_ts, change.start_ts): "dml" for change in changes}
        if alter is not None:
            moments[alter.commit_ts, alter.commit_ts - 1] = "ddl"
        for (commit_ts, start_ts), kind in sorted(moments.items()):
            yield {
                "commit_ts": commit_ts, "start_ts": start_ts, "chunk": 0, "commit_date": _compute_day(commit_ts),
                "pump": "pump-1", "kind": kind, "schema_version": self.version, "job_id": 9 * (kind == "ddl"),
                "schema_state": 0, "payload": b"\0" * 64,
            }  # fmt: skip

    def _build_mutation(self, change: SampleChange) -> dict[str, Any]:
        names = self.tables[change.table].find_identity().columns
        images = [image for image in (change.before, change.after) if image is not None]
        old, new = (format_key_text([image[name] for name in names]) for image in (images[0], images[-1]))
        return {
            "commit_ts": change.commit_ts, "start_ts": change.start_ts, "seq": change.seq,
            "commit_date": _compute_day(change.commit_ts), "schema_version": self.version, "source_db": self.db,
            "source_table": change.table, "db": self.db, "table": change.table,
            "table_id": self.tables[change.table].id, "op": change.op, "key": old,
            "new_key": new if new != old else None, "before": change.before, "after": change.after,
        }  # fmt: skip

    def _add_ddl(self, lo: int, hi: int, alter: AlterSample) -> None:
        before, self.version = self.tables[alter.after.name], self.version + 1
        self.tables[alter.after.name] = alter.after
        info = {"SchemaVersion": self.version, "FinishedTS": alter.commit_ts, "TableInfo": alter.after.raw}
        job = {"id": 9, "type": 5, "state": 6, "schema_id": 2, "table_id": alter.after.id, "schema_name": self.db,
               "table_name": alter.after.name, "query": alter.sql, "start_ts": alter.commit_ts - 1,
               "binlog": info}  # fmt: skip
        SchemaHistory(self.paths).append(hi, [(alter.commit_ts, DdlJob.from_dict(job))])
        row = {
            "window": format_window_name(lo, hi), "segment": 1, "commit_ts": alter.commit_ts, "since": alter.commit_ts,
            "start_ts": alter.commit_ts - 1, "schema_version": self.version, "job_id": 9, "action": 5, "db": self.db,
            "table": alter.after.name, "query": alter.sql, "sql": alter.sql,
            "tables": [f"{self.db}.{alter.after.name}"],
            "decision": "apply", "reason": "", "before": DdlSide((), (before,)).to_json(),
            "after": DdlSide((), (alter.after,)).to_json(),
        }  # fmt: skip
        self._append(DDL, [row])

    def _append(self, table: LakeTable, rows: Sequence[Mapping[str, Any]]) -> None:
        rows = [{k: list(v.items()) if isinstance(v, Mapping) else v for k, v in row.items()} for row in rows]
        data = pa.Table.from_pylist(list(rows), schema=table.build_arrow_schema())
        parts = list(table.partitioned_by) or None
        write_deltalake(self.paths.locate_table(table.name), data, mode="append", partition_by=parts)

    def _mirror_window(self, lo: int, hi: int, changes: Sequence[SampleChange]) -> None:
        ddls = read_landed_ddls(self.paths, lo, hi)
        definitions = WindowDefinitions(SchemaHistory(self.paths).read_state_at(lo), ddls)
        versions = MirrorVersions(self.paths)
        names = {(self.db, change.table) for change in changes}
        plan = plan_mirrors(lo, hi, definitions, ddls, names, versions.read_latest())
        for component in plan.components:
            own = [cell for cell in plan.cells if plan.component[cell.db, cell.table] == component.number]
            net = [
                (SegmentTable(cell.segment, cell.db, cell.table), self._build_net_changes(cell, changes))
                for cell in sorted(own, key=lambda cell: (cell.segment, cell.table))
            ]
            versions.record(apply_component(component, self.paths, DAYS, net).versions)

    def _build_net_changes(self, cell: Cell, changes: Sequence[SampleChange]) -> pa.Table:
        events = [
            RowEvent(c.commit_ts, c.start_ts, c.seq, c.op, c.before, c.after)  # type: ignore[arg-type]
            for c in changes
            if c.table == cell.table and cell.since <= c.commit_ts < cell.until
        ]
        rows = [
            {"op": net.op, "copies": net.copies,
             "before": None if net.before is None else list(net.before.items()),
             "after": None if net.after is None else list(net.after.items()),
             "last_commit_ts": net.last_commit_ts}
            for net in compute_net_changes(events, self.tables[cell.table].find_identity(), {})
        ]  # fmt: skip
        return pa.Table.from_pylist(rows, schema=_NET)


def build_table(name: str, number: int, columns: Mapping[str, int], key: Sequence[str], db: str = "shop") -> TableDef:
    """The table `db`.`name`; `columns`: TiDB's type by column name; an empty `key` means no key."""
    cols = [
        {"id": at, "offset": at - 1, "name": {"O": column, "L": column.lower()}, "state": 5,
         "type": {"Tp": tp, "Flag": t.FLAG_NOT_NULL if column in key else 0, "Flen": -1, "Decimal": -1,
                  "Charset": "utf8mb4" if tp in t.STRINGS else "binary",
                  "Collate": "utf8mb4_bin" if tp in t.STRINGS else "binary", "Elems": None}}
        for at, (column, tp) in enumerate(columns.items(), 1)
    ]  # fmt: skip
    parts = [{"name": {"O": column, "L": column.lower()}, "offset": 0, "length": -1} for column in key]
    index = {"id": 1, "idx_name": {"O": "PRIMARY", "L": "primary"}, "idx_cols": parts, "state": 5, "is_unique": True,
             "is_primary": True}  # fmt: skip
    info = {"id": number, "name": {"O": name, "L": name.lower()}, "charset": "utf8mb4", "collate": "utf8mb4_bin",
            "cols": cols, "index_info": [index] if key else [], "pk_is_handle": False}  # fmt: skip
    return TableDef.from_json(info, DbInfo.from_json(_build_database(db)))


def _build_database(name: str) -> dict[str, Any]:
    names = {"O": name, "L": name.lower()}
    return {"id": 2, "db_name": names, "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}


def _compute_day(commit_ts: int) -> object:
    return tso.to_datetime(commit_ts).date()


BASE = 470_583_292_723_200_000
"""The sample lake starts after this commit_ts (2026-11-20)."""
S = 1000 << 18
"""One second, in units of commit_ts."""


def build_sample(paths: LakePaths, note: str = "a gift") -> SampleLake:
    """Four windows of a shop: a row's life with a change of its key, a DDL, a keyless table; `note` is one value."""
    item = build_table("item", 101, {"id": t.LONG, "name": t.VARCHAR, "price": t.LONG, "note": t.VARCHAR}, ["id"])
    pair = build_table("pair", 102, {"n": t.LONG, "code": t.VARCHAR, "name": t.VARCHAR}, ["n", "code"])
    wider = build_table(
        "item", 101, {"id": t.LONG, "name": t.VARCHAR, "price": t.LONG, "note": t.VARCHAR, "stock": t.LONG}, ["id"]
    )
    lake = SampleLake(paths)
    lake.begin(BASE, item, pair, build_table("log", 103, {"what": t.VARCHAR, "n": t.LONG}, []))
    first = [SampleChange(BASE + S + n, BASE + n, "item", None, _build_item(n)) for n in range(1, 41)]
    lake.add_window(BASE, BASE + 10 * S, [*first, *_build_pairs(BASE + 2 * S)], run_id=_run(0))
    order, at = BASE + 12 * S + 1, BASE + 11 * S
    fourth = {**_build_item(4), "price": "900"}
    lake.add_window(
        BASE + 10 * S,
        BASE + 20 * S,
        [
            SampleChange(order, at, "item", _build_item(4), fourth),
            SampleChange(order, at, "log", None, {"what": "price", "n": "4"}, 1),
            SampleChange(order, at, "pair", {"n": "1", "code": "AB01", "name": "first"},
                         {"n": "2", "code": "AB01", "name": "first"}, 2),
        ],
        run_id=_run(1),
    )  # fmt: skip
    altered = BASE + 25 * S
    stocked = {**fourth, "note": note, "stock": "7"}
    lake.add_window(
        BASE + 20 * S,
        BASE + 30 * S,
        [SampleChange(altered + S, altered, "item", {**fourth, "stock": None}, stocked)],
        AlterSample(altered, "ALTER TABLE item ADD COLUMN stock INT", wider),
        run_id=_run(2),
    )
    last = SampleChange(BASE + 35 * S, BASE + 34 * S, "item", {**_build_item(9), "stock": None}, None)
    lake.add_window(BASE + 30 * S, BASE + 40 * S, [last], run_id=_run(3))
    return lake


def _build_item(number: int) -> dict[str, str | None]:
    return {"id": str(number), "name": f"item {number}", "price": str(100 * number), "note": None}


def _build_pairs(ts: int) -> list[SampleChange]:
    row = {"n": "1", "code": "AB01", "name": "first"}
    return [
        SampleChange(ts, ts - S, "pair", None, row),
        SampleChange(ts, ts - S, "log", None, {"what": "new", "n": "1"}, 1),
    ]


def _run(number: int) -> str:
    return f"scheduled__2026-11-20T10:0{number}:00+00:00"


def register_cluster(pd_url: str) -> None:
    """Register two pumps and a consumer at `pd_url`."""
    now = tso.compose(time.time_ns() // 1_000_000)
    with contextlib.closing(EtcdClient([pd_url])) as etcd:
        registry = NodeRegistry(etcd)
        for number, state in ((1, "online"), (2, "paused")):
            node = NodeStatus(f"pump-{number}", f"10.0.0.{number}:8250", state, True, max_commit_ts=now - number * S)
            registry.put_pump(replace(node, update_ts=now))
        registry.put_drainer(NodeStatus("binlake-shop", "", "paused", max_commit_ts=BASE + 40 * S, update_ts=now))
