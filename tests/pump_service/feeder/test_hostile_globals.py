"""A server whose global variables are all hostile at once answers every session of Binlake as any other server does.

`HOSTILE` and `LEFT` decide about each variable that a session of MariaDB or MySQL has: a new one fails the test.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from feeder_helpers import CountingClock
from loading_helpers import DB, DyingPumps, Loaded, committed, count_inserts
from support.hostile import HOSTILE, ask, hostile
from support.mariadb import MariaDb, MySql

from binlake.common import sqllink
from binlake.common.sqllink import PRIVILEGED, VARIABLES, SqlLink
from binlake.config.servers import TargetSection
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.checks.report import run_checks
from binlake.pump_service.feeder.settings import FeederFile
from binlake.target.session.session import TargetSession as TargetSession
from binlake.testkit.captures.state import TargetView
from binlake.testkit.captures.state import connect as connect_to_compare
from binlake.wire import binlog_pb2 as pb

pytestmark = pytest.mark.mariadb

LEFT = re.compile(
    "|".join(
        (
            # set by pymysql with each connection, or by the session that needs it
            r"autocommit|character_set_(client|connection|results)|collation_connection",
            # the server's own defaults for databases: statements name theirs, or the target's people chose
            r"character_set_(database|filesystem|server)|collation_(database|server)|storage_engine",
            # how fast a statement is, and in how much memory
            r"(aria|bulk|deadlock|expensive|histogram|join|mrr|myisam|optimizer|preload|query_(alloc|prealloc)|range|read"
            r"|rowid|secondary|select_into|set_operations|sort|transaction_(alloc|prealloc)|innodb_(ddl|parallel))_\w+",
            r"analyze_\w+|connection_memory_\w+|eq_range_index_dive_limit|in_predicate_conversion_threshold|max_heap_"
            r"table_size|max_(length_for_sort_data|rowid_filter_size|seeks_for_key|tmp_tables|delayed_threads)",
            r"max_insert_delayed_threads|max_join_size|parser_max_mem_size|tmp_(memory_)?table_size|use_stat_tables",
            r"use_secondary_engine|innodb_(tmpdir|table_locks)|internal_tmp_mem_storage_engine|information_schema_stats"
            r"_expiry|enable_secondary_engine_statistics|external_table_\w+|sql_buffer_result|low_priority_updates",
            r"query_cache_\w+|tcp_nodelay|thread_pool_priority|global_connection_memory_tracking|net_retry_count",
            # what is logged, traced and reported beside a result
            r"binlog_(?!format)\w+|log_\w+|long_query_time|min_examined_row_limit|note_verbosity|profiling\w*|slow_query_log"
            r"|session_track_\w+|sql_(log_\w+|warnings)|progress_report_time|end_markers_in_json|explain_json_format_"
            r"version|terminology_use_previous|resultset_metadata|transaction_allow_batching|print_identified_with_as_hex",
            # how a table is stored
            r"column_compression_\w+|innodb_default_encryption_key_id|keep_files_on_create",
            # of replication, clusters and stored programs, which no session of Binlake uses
            r"default_master_connection|group_replication_consistency|gtid_\w+|immediate_server_version|original_\w+"
            r"|max_relay_log_size|pseudo_\w+|rbr_exec_mode|require_row_format|server_id|skip_(parallel_)?replication"
            r"|sql_slave_skip_counter|wsrep_\w+|xa_detach_on_prepare|max_sp_recursion_depth|old_passwords"
            r"|generated_random_password_length|innodb_ft_user_stopword_table|max_points_in_geometry|old",
            r"updatable_views_with_limit|standard_compliant_cte|show_create_table_skip_secondary_engine",
            # begins as nothing in each session, or cannot be set in one
            r"identity|insert_id|last_insert_id|rand_seed[12]|timestamp|interactive_timeout|max_allowed_packet"
            r"|max_user_connections|net_buffer_length",
        )
    )
)
"""Names of variables that change neither what a statement of Binlake returns nor what it does."""


@pytest.fixture(params=["mariadb_source", "mysql"])
def server(request: pytest.FixtureRequest) -> MariaDb:
    found: MariaDb = request.getfixturevalue(request.param)
    return found


def test_a_decision_exists_for_each_variable_that_a_session_can_set(server: MariaDb) -> None:
    with server.connect() as link:
        decided = VARIABLES.keys() | PRIVILEGED.keys()
        undecided = list[str]()
        for name, _ in ask(link, "SHOW SESSION VARIABLES"):
            if name in decided or LEFT.fullmatch(name):
                continue
            try:
                ask(link, f"SET SESSION {name} = @@SESSION.{name}")
            except Exception as error:  # noqa: BLE001 - its number says that no session can set it
                if error.args[0] in (1229, 1238):
                    continue
            undecided.append(name)
    assert undecided == []
    assert decided - {name for name in decided if name.startswith("tidb_")} == HOSTILE.keys()


def test_every_session_has_the_same_values_whatever_the_globals_are(server: MariaDb) -> None:
    def values() -> dict[str, str]:
        with SqlLink(host=server.host, port=server.port, user="root", charset="utf8mb4", autocommit=True) as link:
            found = {str(name).lower(): str(value) for name, value in ask(link, "SHOW SESSION VARIABLES")}
            return {name: value for name, value in found.items() if name in HOSTILE}

    friendly = values()
    with hostile(server):
        assert values() == friendly


def test_a_new_process_connects_to_a_hostile_server(server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqllink, "_names", {})  # it has asked no server yet
    with hostile(server), server.connect() as link:
        sqllink.set_variables(link)
        assert ask(link, "SELECT @@sql_select_limit") == [(int(VARIABLES["sql_select_limit"]),)]


def test_a_hostile_server_is_loaded_checked_tracked_and_compared_like_any_other(
    server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a new process: the first session also asks which variables the server has.
    monkeypatch.setattr("binlake.common.sqllink._names", {})
    flavor = Flavor.MYSQL if isinstance(server, MySql) else Flavor.MARIADB
    with hostile(server) as admin, closing(admin.cursor()) as cursor:
        if flavor is Flavor.MYSQL:
            cursor.execute("SET SESSION sql_generate_invisible_primary_key = 1")
        try:
            cursor.execute(f"CREATE DATABASE {DB}")
            cursor.execute(f"CREATE TABLE {DB}.t (k VARCHAR(20) NOT NULL PRIMARY KEY, at TIMESTAMP NULL)")
            cursor.execute(f"CREATE TABLE {DB}.keyless (a INT)")
            cursor.execute(
                f"INSERT INTO {DB}.t VALUES ('a', NOW()), ('b', NULL), ('c', NULL), ('d', NULL), ('e', NOW())"
            )
            cursor.execute(f"INSERT INTO {DB}.keyless VALUES (1), (2), (3), (4), (5)")
            _check_load(server, tmp_path)
            _check_findings(server)
            _check_tracker(server, tmp_path)
            _check_target(server)
        finally:
            cursor.execute(f"DROP DATABASE IF EXISTS {DB}")


def _check_load(server: MariaDb, folder: Path) -> None:
    pumps = DyingPumps()
    loaded = Loaded(server, folder / "load", pumps, CountingClock())
    loaded.load()
    rows = [
        count_inserts(mutation)
        for prewrite in committed(pumps)
        for mutation in pb.PrewriteValue.FromString(prewrite.prewrite_value).mutations
    ]
    assert sum(rows) == 10
    keyless = loaded.catalog.find_table("s1", DB, "keyless")
    assert keyless is not None
    names = [column.name for column in keyless.columns]
    assert names == (["my_row_id", "a"] if isinstance(server, MySql) else ["a"])
    loaded.close()


def _check_findings(server: MariaDb) -> None:
    own = {"host": server.host, "port": server.port}
    settings = FeederFile.model_validate({"source": [{"name": "s1", **own}], "tracker": own})
    findings = {finding.check: finding for _, finding in run_checks(settings)}
    assert findings["log_bin"].found == "ON"
    assert findings["server_id"].verdict == "ok"


def _check_tracker(server: MariaDb, folder: Path) -> None:
    loaded = Loaded(server, folder / "load", DyingPumps(), CountingClock())
    for text in ("CREATE TABLE made (a INT)", "ALTER TABLE made ADD b VARCHAR(9) DEFAULT 'x', ALGORITHM = COPY"):
        loaded.catalog.follow("s1", LoggedStatement(DB, text, LoggedSession(sql_mode=0)))
    made = loaded.catalog.find_table("s1", DB, "made")
    assert made is not None
    assert [column.name for column in made.columns] == ["a", "b"]
    loaded.close()


def _check_target(server: MariaDb) -> None:
    target = TargetSection(host=server.host, port=server.port, user="root", db_type=server.name)
    with closing(TargetSession(target)) as session:
        assert len(session.fetch_rows(f"SELECT k FROM {DB}.t")) == 5
        session.begin()
        session.execute(f"UPDATE {DB}.t SET at = NULL")
        session.commit()
        session.execute(f"CREATE TABLE {DB}.plain (a INT)")
        engine = f"SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{DB}' AND TABLE_NAME = 'plain'"
        assert session.fetch_value(engine) == "InnoDB"
    with closing(connect_to_compare(server.host, server.port, "root")) as link:
        view = TargetView(link, server.name, ())
        assert len(list(view.read_rows(DB, "t", ("k",), ("varchar(20)",)))) == 5
