"""The demo's feed: it also sends the windows to topics of a real Kafka, from which a consumer rebuilds the tables.

The consumer comes from `examples/` and uses no Binlake code: it decodes with fastavro, asks the registry for schemas,
and stores the rows in SQLite.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from binlake.config import Replication
from binlake.feed.state import read_state
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_sink
from binlake.testkit.captures import connect
from deploy.local.apicurio import Apicurio
from deploy.local.demo_report import Report
from deploy.local.kafka import KafkaBroker
from deploy.local.process import ProcessError

_CONSUMER = Path(__file__).resolve().parents[2] / "examples" / "consume_avro_topic.py"
_NAME = "demo-avro"
_PATIENCE_S = 300.0
_POLL_S = 0.25
_SIDE_BY_SIDE = 2


class DemoFeed:
    """A broker and a registry below `folder`, and the replication's section for a feed to them."""

    def __init__(self, folder: Path) -> None:
        self.kafka = KafkaBroker(folder=folder / "kafka")
        self.registry = Apicurio(folder=folder / "registry")
        self._folder = folder

    @property
    def starts(self) -> dict[str, Callable[[], object]]:
        """The servers to start, by name."""
        return {"Kafka": self.kafka.start, "schema registry": self._start_registry}

    def stop(self) -> None:
        """Stop both."""
        self.kafka.stop()
        self.registry.stop()

    def render_section(self) -> str:
        """The feed's section of the replication file."""
        return f"""
[[feed]]
name = "{_NAME}"
sink-uri = "kafka://{self.kafka.address}/demo?protocol=avro&enable-tidb-extension=true&partition-num=2"
schema-registry = "{self.registry.url}"
"""

    def show(self, replication: Replication, report: Report) -> bool:
        """Whether the consumer's tables equal the target's. Raises ProcessError."""
        self._wait_until_published(replication)
        windows = WindowLog(LakePaths.of(replication))
        events = [
            event
            for event in windows.read_events(stage="publish", state="done")
            if event["sink"] == name_feed_sink(_NAME)
        ]
        messages = sum(event["rows"] for event in events)
        report.say(f"feed: {len(events)} windows, {messages} messages, Kafka at {self.kafka.address}")
        report.say(f"feed: schemas at {self.registry.url}/subjects")
        target = replication.require_sql_target(hint="the demo has one")
        with closing(connect(target.host, target.port, target.user, target.password)) as connection:
            tables = _list_tables(connection)
            with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
                list(pool.map(self._consume, [f"{db}_{table}" for db, table in tables]))
            equal = [self._compare(connection, db, table) for db, table in tables]
        report.say(f"feed: the consumer's {len(equal)} tables: {'equal to the target' if all(equal) else 'NOT EQUAL'}")
        return all(equal)

    def _start_registry(self) -> None:
        self.registry.start()
        self.registry.set_compatibility("BACKWARD")

    def _wait_until_published(self, replication: Replication) -> None:
        windows, end = WindowLog(LakePaths.of(replication)), time.monotonic() + _PATIENCE_S
        while (windows.find_greatest_hi("publish", name_feed_sink(_NAME)) or 0) < (windows.find_landed_ts() or 0):
            state = read_state(windows, _NAME)
            if not state.works:
                raise ProcessError(state.explain_skip(_NAME))
            if time.monotonic() > end:
                raise ProcessError("the feed did not reach the end of the lake in time")
            time.sleep(_POLL_S)

    def _consume(self, topic: str) -> None:
        command = [sys.executable, str(_CONSUMER), "--brokers", self.kafka.address, "--registry", self.registry.url,
                   "--topic", topic, "--database", str(self._build_path(topic))]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProcessError(f"the consumer of {topic} failed: {done.stderr[-500:]}")

    def _build_path(self, topic: str) -> Path:
        # One database for each consumer, because SQLite allows only one writer.
        return self._folder / f"{topic}.sqlite"

    def _compare(self, connection: Any, db: str, table: str) -> bool:
        topic = f"{db}_{table}"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{db}`.`{table}`")
            names = [column[0] for column in cursor.description]
            wanted = sorted(tuple(map(str, row)) for row in cursor.fetchall())
        with closing(sqlite3.connect(self._build_path(topic))) as replica:
            columns = ", ".join(f'"{name}"' for name in names)
            consumed = sorted(tuple(map(str, row)) for row in replica.execute(f'SELECT {columns} FROM "{topic}"'))
        verdict = "equal" if consumed == wanted else "differs"
        print(f"{'':10}topic {topic:<18} {len(consumed):>8,} rows  {verdict}", flush=True)
        return consumed == wanted


def _list_tables(connection: Any) -> list[tuple[str, str]]:
    """The tables of the target that came from the source."""
    query = """SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN
        ('information_schema', 'mysql', 'performance_schema', 'sys', 'tidb_binlog') AND table_type = 'BASE TABLE'
        ORDER BY 1, 2"""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]
