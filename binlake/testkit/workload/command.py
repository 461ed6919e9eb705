"""`binlake workload`: writes a configurable load through the pump client, and serves the status port of its TiDB.

Its output is the end state and, if requested, everything it wrote, in the format of captures.
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import structlog

from binlake import tso
from binlake.cluster.control.commands import add_cluster, build_tls
from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import ClientOptions, PumpClient
from binlake.common.commandline import add_output
from binlake.pump_service.monitoring import Probes, find_no_reason
from binlake.pump_service.statusport import StatusJobs, StatusServer, add_status_port, build_status_tls
from binlake.pump_service.waits import wait_for_event
from binlake.rows.schema.forms import CHARSET, COLLATE
from binlake.testkit.workload.catalog import ID, WorkloadTable, build_row_formatter
from binlake.testkit.workload.runner import Runner
from binlake.testkit.workload.source import LiveTransactions, SharedClock
from binlake.testkit.workload.spec import DDL_KINDS, KINDS, Col, Faults, Spec
from binlake.wire import binlog_pb2 as pb

Json = dict[str, Any]
_LENGTH = struct.Struct("<I")
log = structlog.get_logger()
VERSION = "8.0.11-TiDB-v7.5.0"
_DRAIN_S = _SETTLE_S = 30.0
_POLL_S = 0.2


def build_state_lines(db: str, tables: Iterable[WorkloadTable], commit_ts: int, step: str = "end") -> Iterator[Json]:
    """The lines of states.jsonl for the state at `commit_ts`."""
    tables = list(tables)
    names = sorted([db, table.name, "BASE TABLE"] for table in tables)
    yield {"commit_ts": str(commit_ts), "step": step, "databases": [db], "tables": names}
    for table in tables:
        shown, columns = build_row_formatter(table), table.list_column_names()
        yield {
            "commit_ts": str(commit_ts), "step": step, "table": f"{db}.{table.name}", "schema": db,
            "name": table.name, "kind": "BASE TABLE", "create": _create_sql(table), "columns": columns,
            "types": [col.sql_type for _, col in table.columns], "time_zone": "+00:00",
            "order_by": [ID] if table.keyed else columns, "rows": [shown(row) for row in table.iterate_rows()],
        }  # fmt: skip


def write_lines(path: Path, lines: Iterable[Json]) -> None:
    """Write one JSON value a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _create_sql(table: WorkloadTable) -> str:
    parts = [f"  {_render_column(col)}" for _, col in table.columns] + [f"  {key}" for key in table.render_keys()]
    options = f"ENGINE=InnoDB DEFAULT CHARSET={CHARSET} COLLATE={COLLATE}"
    return f"CREATE TABLE `{table.name}` (\n" + ",\n".join(parts) + f"\n) {options}"


def _render_column(col: Col) -> str:
    null = " NOT NULL" if col.not_null else " NULL" if "timestamp" in col.sql_type else ""
    default = f" DEFAULT '{col.default}'" if col.default is not None else "" if col.not_null else " DEFAULT NULL"
    return f"`{col.name}` {col.sql_type}{null}{default}"


class Recording:
    """A capture folder that grows while the workload runs; thread-safe."""

    def __init__(self, folder: Path, cluster_id: int, seed: int) -> None:
        self._folder = folder
        self._meta: Json = {"case": folder.name, "seed": seed, "cluster_id_in_requests": {str(cluster_id): 1}}
        self._jobs: list[Json] = []
        self._outcomes: list[Json] = []
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "binlogs.bin").open("wb")

    def record_binlog(self, binlog: pb.Binlog) -> None:
        """Record a binlog that was acked or handed to the pump client."""
        payload = binlog.SerializeToString()
        with self._lock:
            self._file.write(_LENGTH.pack(len(payload)) + payload)

    def record_job(self, job: Json) -> None:
        """Record a finished DDL job."""
        self._jobs.append(job)

    def record_orphan(self, start_ts: int, commit_ts: int) -> None:
        """Record a transaction whose C (`commit_ts` 0: whose R) was lost."""
        kind, outcome = ("orphan", "committed") if commit_ts else ("orphan_rollback", "rolled_back")
        line = {"start_ts": str(start_ts), "kind": kind, "outcome": outcome}
        with self._lock:
            self._outcomes.append(line | ({"commit_ts": str(commit_ts)} if commit_ts else {}))

    def close(self, states: Iterable[Json]) -> None:
        """Write the rest of the folder."""
        self._file.close()
        write_lines(self._folder / "ddl_jobs.jsonl", sorted(self._jobs, key=_get_version))
        write_lines(self._folder / "states.jsonl", states)
        (self._folder / "outcomes.json").write_text(json.dumps(self._outcomes, indent=1), encoding="utf-8")
        (self._folder / "meta.json").write_text(json.dumps(self._meta, indent=1), encoding="utf-8")


def _get_version(job: Json) -> int:
    version: int = job["binlog"]["SchemaVersion"]
    return version


class WorkloadCommand:
    """The command; needs a `binlake pd` (or PD) and at least one pump."""

    name = "workload"
    examples = ("binlake workload --transactions 1000 --seed 7 --pd-urls http://127.0.0.1:2379",)
    help = "write a generated load to the pumps as TiDB would, and serve its status port"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options with the defaults of Spec."""
        add, spec = parser.add_argument, Spec(transactions=1)
        add_cluster(parser)
        add_status_port(parser)
        add("--strategy", default="range", help="range, hash or score (docs/understand/pump-client.md)")
        add(
            "--label",
            type=_parse_pairs,
            default={},
            metavar="NAME=VALUE,...",
            help="write only to pumps with this label",
        )
        add("--socket", default="", help="Unix socket of one local pump, instead of the registered ones")
        add("--seed", type=int, default=spec.seed, help="equal seeds write equal rows (default %(default)s)")
        add("--transactions", type=int, default=0, help="number of transactions, over all writers")
        add("--seconds", type=float, default=0.0, help="seconds to run, instead of --transactions")
        add("--writers", type=int, default=spec.writers, help="concurrent transactions (default %(default)s)")
        add(
            "--rate",
            type=float,
            default=0.0,
            help="transactions per second (default: as fast as the pumps accept them)",
        )
        _add_shape(add, spec)
        _add_faults(add)
        add("--state", type=Path, help="write the expected end state to this file (lines of a capture's states.jsonl)")
        add("--record", type=Path, metavar="DIR", help="save all that was written as a capture")
        add("--keep-serving", action="store_true", help="serve the status port until interrupted")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Write the load and print the figures. Raises BinlakeError."""
        spec = build_spec(args)
        with ExitStack() as stack:
            pd, client = stack.enter_context(_connect(args))
            clock = stack.enter_context(closing(SharedClock(pd)))
            transactions, history = LiveTransactions(), StatusJobs()
            meta = {"version": VERSION, "case": "workload", "seed": spec.seed}
            recording = Recording(args.record, pd.fetch_cluster_id(), spec.seed) if args.record else None
            runner = Runner(spec, client, clock.fetch_ts, transactions, history, recording)
            probed = Probes(find_no_reason, runner.find_trouble)
            status = StatusServer(
                meta, history, transactions, lambda: tso.MAX_TS, args.status_addr, probed=probed,
                tls=build_status_tls(args),
            )  # fmt: skip
            stack.enter_context(status)
            _on_signal(runner.stop)
            print(f"workload: status port {status.url}", flush=True)
            runner.run()
            pending = client.drain(_DRAIN_S)
            if spec.faults.orphans:
                _settle(args, pd.fetch_ts())
            _write_outputs(runner, spec, args.state, recording)
            _print(summarise(runner, pending, status.url), args.output)
            if args.keep_serving:
                stopped = threading.Event()
                _on_signal(stopped.set)
                wait_for_event(stopped)
        return 0


def build_spec(args: argparse.Namespace) -> Spec:
    """The load that the options describe. Raises ConfigError."""
    faults = Faults(
        rollback=args.rollback, lose_commit=args.lose_commit, lose_rollback=args.lose_rollback, hold=args.hold,
        double=args.double,
    )  # fmt: skip
    return Spec(
        seed=args.seed, db=args.db, tables=args.tables, keyless=args.keyless, columns=args.columns,
        row_bytes=args.row_bytes, txn_rows=args.txn_rows, mix=args.mix, hot_keys=args.hot_keys,
        hot_share=args.hot_share, ddl_every=args.ddl_every, ddl=args.ddl, writers=args.writers, rate=args.rate,
        transactions=args.transactions, seconds=args.seconds, faults=faults,
    )  # fmt: skip


def summarise(runner: Runner, pending: int, url: str) -> dict[str, Any]:
    """The figures printed at the end. `writes_per_s`: binlogs acked, without fakes."""
    counts = dict(runner.tally.counts)
    ends = {name: counts.get(name, 0) for name in ("commit", "hold", "double", "lose_commit")}
    single = counts.get("rollback", 0) + counts.get("lose_rollback", 0)
    lost = counts.get("lose_commit", 0) + counts.get("lose_rollback", 0)
    transactions = sum(ends.values()) + single
    writes = 2 * transactions + ends["double"] - lost
    seconds = max(runner.seconds, 1e-9)
    return {
        "committed": sum(ends.values()),
        "rolled_back": single,
        "failed": counts.get("failed", 0),
        "rows": counts.get("rows", 0),
        "ddl": counts.get("ddl", 0),
        "seconds": round(seconds, 2),
        "transactions_per_s": round(transactions / seconds, 1),
        "writes_per_s": round(writes / seconds, 1),
        "p50_ms": round(runner.latencies.compute_quantile(0.5) * 1000, 2),
        "p99_ms": round(runner.latencies.compute_quantile(0.99) * 1000, 2),
        "ends_on_their_way": pending,
        "last_commit_ts": str(runner.tally.last_ts),
        "status_url": url,
    }


def _add_shape(add: Callable[..., Any], spec: Spec) -> None:
    add("--db", default=spec.db, help="name of the database (default %(default)s)")
    add("--tables", type=int, default=spec.tables, help="tables at the start (default %(default)s)")
    add("--keyless", type=int, default=spec.keyless, help="how many of them have no primary key (default %(default)s)")
    add("--columns", type=_split_words, default=spec.columns, help=f"kinds, comma list of {', '.join(KINDS)}")
    add(
        "--row-bytes",
        type=int,
        default=spec.row_bytes,
        help="bytes of a row that its varchar, text, blob and varbinary columns share",
    )
    add(
        "--txn-rows",
        type=_build_numbers_parser(":", 2),
        default=spec.txn_rows,
        metavar="LEAST:MOST",
        help="rows of a transaction",
    )
    add(
        "--mix",
        type=_build_numbers_parser(",", 3),
        default=spec.mix,
        help="weights of insert, update, delete (default 50,40,10)",
    )
    add("--hot-keys", type=int, default=0, help="rows of each table and writer that most updates go to")
    add(
        "--hot-share", type=float, default=spec.hot_share, help="share of updates that go to them (default %(default)s)"
    )
    add("--ddl-every", type=int, default=0, help="transactions between two DDLs (default: no DDL)")
    add(
        "--ddl", type=_split_words, default=DDL_KINDS, help=f"kinds, used in turn, comma list of {', '.join(DDL_KINDS)}"
    )


def _add_faults(add: Callable[..., Any]) -> None:
    add("--rollback", type=float, default=0.0, help="share of transactions that are rolled back")
    add(
        "--lose-commit",
        type=float,
        default=0.0,
        help="share whose commit is never sent: the pump has to ask the source",
    )
    add("--lose-rollback", type=float, default=0.0, help="share that is rolled back and whose rollback is never sent")
    add("--hold", type=float, default=0.0, help="share that stays open while later ones commit")
    add(
        "--double", type=float, default=0.0, help="share whose prewrite is written twice, to two pumps if there are two"
    )


@contextmanager
def _connect(args: argparse.Namespace) -> Iterator[tuple[PdClient, PumpClient]]:
    urls, tls = _split_words(args.pd_urls), build_tls(args)
    with closing(PdClient(urls, tls=tls)) as pd, closing(EtcdClient(urls, tls=tls)) as etcd:
        options = ClientOptions(strategy=args.strategy, label=args.label, socket=args.socket, tls=tls)
        with PumpClient(None if args.socket else NodeRegistry(etcd), pd.fetch_cluster_id(), options) as client:
            yield pd, client


def _settle(args: argparse.Namespace, ts: int) -> None:
    """Wait until each online pump has passed `ts`, fetched after the run: then all lost outcomes are resolved."""
    until = time.monotonic() + _SETTLE_S
    with closing(EtcdClient(_split_words(args.pd_urls), tls=build_tls(args))) as etcd:
        registry = NodeRegistry(etcd)
        while behind := [p.node_id for p in registry.list_pumps() if p.state == "online" and p.max_commit_ts < ts]:
            if time.monotonic() > until:
                log.warning("pumps_behind", pumps=behind, ts=ts, hint="--keep-serving")
                return
            time.sleep(_POLL_S)


def _on_signal(action: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: action())


def _write_outputs(runner: Runner, spec: Spec, state: Path | None, recording: Recording | None) -> None:
    def build_lines() -> Iterator[dict[str, Any]]:
        return build_state_lines(spec.db, runner.catalog.tables, runner.tally.last_ts)

    if state is not None:
        write_lines(state, build_lines())
    if recording is not None:
        recording.close(build_lines())


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _build_numbers_parser(separator: str, count: int) -> Callable[[str], tuple[int, ...]]:
    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(separator)
        if len(parts) != count or not all(part.isdecimal() for part in parts):
            raise argparse.ArgumentTypeError(f"{text!r} is not {count} numbers with {separator!r} between")
        return tuple(int(part) for part in parts)

    return parse


def _parse_pairs(text: str) -> dict[str, str]:
    parts = [word.partition("=") for word in _split_words(text)]
    if not all(name and equals and value for name, equals, value in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of NAME=VALUE")
    return {name: value for name, _, value in parts}


def _print(values: dict[str, Any], output: str) -> None:
    text = json.dumps(values) if output == "json" else "\n".join(f"{name}: {value}" for name, value in values.items())
    print(text, flush=True)
