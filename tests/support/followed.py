"""A source whose DDL a catalog follows, and a target that gets the DDL which the catalog publishes, as sinks apply it.

Source, tracker and target are one real server: downstream of the catalog, the source's database `shop` is `copy_shop`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pymysql.cursors import DictCursor

from binlake.common.sql import Dialect
from binlake.common.sqllink import show_bytes_too
from binlake.ddl.ddls import plan_ddls
from binlake.dialect import map_ddl
from binlake.mysqlbinlog.definitions.descriptions import (
    SESSION,
    DatabaseDescription,
    TableDescription,
    build_visibility_sql,
    describe_database,
    describe_table,
    list_tables,
)
from binlake.mysqlbinlog.definitions.writer import DefinitionChange
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.catalog import Catalog, SourceNames
from binlake.pump_service.feeder.tracker import ScratchServer
from binlake.rows.schema import DdlJob, SchemaState, WindowDdl
from binlake.rules import Rules
from binlake.statements.ddlsteps import RequireNoRows
from binlake.target.session.session import SQL_MODE
from deploy.local.mariadb import MariaDb

COPY = "copy_"
_MODES = {
    "ONLY_FULL_GROUP_BY": 1 << 5, "STRICT_TRANS_TABLES": 1 << 21, "STRICT_ALL_TABLES": 1 << 22,
    "NO_ZERO_IN_DATE": 1 << 23, "NO_ZERO_DATE": 1 << 24, "ALLOW_INVALID_DATES": 1 << 25,
    "ERROR_FOR_DIVISION_BY_ZERO": 1 << 26, "NO_AUTO_CREATE_USER": 1 << 28, "NO_ENGINE_SUBSTITUTION": 1 << 30,
}  # fmt: skip
"""Bits of sql_mode by name; needed because MySQL shows NULL for some values of `@@sql_mode + 0`."""
MOMENT_US = 1_700_000_000_123_456


class Followed:
    """`run` executes statements at the source and executes the resulting DDL at the target, if it is `published`."""

    def __init__(
        self,
        server: MariaDb,
        flavor: Flavor,
        *,
        published: bool = True,
        source: str = "one",
        ignores: Callable[[str, str], bool] = lambda _db, _table: False,
    ) -> None:
        self.flavor, self.server, self.source = flavor, server, source
        self.names = SourceNames(source, flavor, lambda db: COPY + db, ignores)
        self.jobs: list[dict[str, Any]] = []
        self.changes: list[DefinitionChange] = []
        self._tracker = ScratchServer(source, flavor, {"host": server.host, "port": server.port, "user": server.user})
        self.catalog = self.restarted()
        self._own = server.connect(cursorclass=DictCursor)
        show_bytes_too(self._own)
        self._there = server.connect()
        self._ts = 1000
        self.state = SchemaState()
        self.published = published

    def restarted(self) -> Catalog:
        """Rebuild the catalog from the recorded jobs, as at a start."""
        self.catalog = Catalog([self.names], {self.source: self._tracker}, json.loads(json.dumps(self.jobs)))
        return self.catalog

    def close(self) -> None:
        """End the connections."""
        self._tracker.close()
        self._own.close()
        self._there.close()

    def run(self, *texts: str, db: str = "shop", settings: str = "") -> None:
        """Execute `texts` at the source in a session with `settings`, follow them, and publish the result."""
        for text in texts:
            with self._own.cursor() as cursor:
                self._begin(cursor, settings, db)
                cursor.execute(text)
            self.follow(text, db, self._session())

    def follow(self, text: str, db: str = "shop", session: LoggedSession | None = None) -> list[DefinitionChange]:
        """Follow a logged statement with the catalog, execute the result at the target, and return it."""
        changes = self.catalog.follow(self.source, LoggedStatement(db, text, session or LoggedSession()))
        self.publish(changes)
        return changes

    def adopt(self) -> list[DefinitionChange]:
        """Adopt the first definitions: everything that the source has."""
        names = [db for db in self._databases() if not db.startswith((COPY, "binlake_", "tidb_"))]
        found = [self.described_database(name) for name in names]
        changes = self.catalog.adopt(self.source, [database for database in found if database is not None])
        self.publish(changes)
        return changes

    def publish(self, changes: Sequence[DefinitionChange]) -> None:
        """Plan, map and execute the changes of one statement, as land, merge and convert would.

        As from the feeder, all are submitted before the first commits, and finished after the last has.
        """
        count, first = len(changes), self._ts + 10
        self._ts = first + 2 * count
        binlogs, jobs = [], []
        for start_ts, change in enumerate(changes, first):
            body = change.build_job(start_ts, self._ts)
            self.changes.append(change)
            self.jobs.append(dict(body))
            job = DdlJob.from_dict(body)
            binlogs.append(WindowDdl(start_ts + count, start_ts, job.id, change.schema_state, change.query, job))
            jobs.append((start_ts + count, job))
        planned = plan_ddls(self.state, binlogs, jobs, Rules())
        self.state = self.state.fold(jobs)
        for ddl in planned:
            if self.published and ddl.decision == "apply":
                self._execute_at_target(map_ddl(ddl, self._dialect).sql)

    def described(self, db: str, table: str) -> TableDescription | None:
        """The table as the server describes it."""
        self._query_settings()
        return describe_table(self._query, self.flavor, db, table, build_visibility_sql(self._query))

    def described_database(self, db: str) -> DatabaseDescription | None:
        """The database with its tables as the server describes it."""
        found = describe_database(self._query, db)
        if found is None:
            return None
        tables = [self.described(db, name) for name in list_tables(self._query, db)]
        return DatabaseDescription(found.name, found.charset, found.collate, tuple(t for t in tables if t is not None))

    @property
    def _dialect(self) -> Dialect:
        return "mariadb" if self.flavor is Flavor.MARIADB else "mysql"

    def _begin(self, cursor: DictCursor, settings: str, db: str) -> None:
        cursor.execute("SET SESSION sql_mode = DEFAULT, time_zone = '+00:00', foreign_key_checks = 0")
        cursor.execute(f"SET SESSION timestamp = {MOMENT_US / 1_000_000:.6f}")
        if settings:
            cursor.execute(settings)
        if db in self._databases():
            self._own.select_db(db)

    def _session(self) -> LoggedSession:
        """The session variables that the log would record for the last statement."""
        with self._own.cursor() as cursor:
            cursor.execute("SELECT @@sql_mode AS mode, @@time_zone AS zone, @@explicit_defaults_for_timestamp AS e")
            row = next(iter(cursor.fetchall()))
            ids = dict[str, int]()
            for name in ("connection", "server"):
                sql = "SELECT id FROM information_schema.COLLATIONS WHERE COLLATION_NAME = @@collation_"
                cursor.execute(sql + name)
                ids[f"{name}_collation"] = next(iter(cursor.fetchall()))["id"]
        return LoggedSession(
            sql_mode=sum(_MODES[name] for name in row["mode"].split(",") if name),
            connection_collation=ids["connection_collation"],
            server_collation=ids["server_collation"],
            time_zone=row["zone"],
            explicit_defaults_for_timestamp=bool(row["e"]),
            timestamp_us=MOMENT_US,
        )

    def _databases(self) -> list[str]:
        return [row["SCHEMA_NAME"] for row in self._query("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA", ())]

    def _query_settings(self) -> None:
        with self._own.cursor() as cursor:
            for text in SESSION:
                cursor.execute(text)

    def _query(self, sql: str, arguments: Sequence[object]) -> list[dict[str, Any]]:
        with self._own.cursor() as cursor:
            cursor.execute(sql, tuple(arguments) or None)
            return [{name.upper(): value for name, value in row.items()} for row in cursor.fetchall()]

    def _execute_at_target(self, statements: Sequence[str]) -> None:
        """Execute in a session with the settings of `binlake.target.session`."""
        with self._there.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
            cursor.execute(f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0")
            cursor.execute("SET SESSION explicit_defaults_for_timestamp = 1")
            for sql in statements:
                if RequireNoRows.find_in(sql) is None:
                    cursor.execute(sql)
