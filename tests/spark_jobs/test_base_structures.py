"""The tables that a full load creates at the target, from the texts that a genuine TiDB showed of them (captures)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.mariadb import MariaDb
from support.windows import target_of

from binlake.ddl.ddls import plan_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.rows.schema import SchemaState, WindowDdl
from binlake.spark_jobs.bootstrap.source import BootstrapTable, Structures, derive_column_shape, derive_shape
from binlake.statements.literal import quote_name
from binlake.target.definitions.definitions import compare_definitions, expect_after_ddl, read_definitions
from binlake.target.session.session import TargetSession
from binlake.testkit.captures.capture import Capture, StateAt
from binlake.window.cuts import build_ddl_batch
from deploy.local.commitlog import RULES, read_log

CAPTURES = Path(__file__).parent.parent / "captures"
FROM = 1 << 40
CHOSEN = ("keys", "types_all", "partition_gen", "ddl", "zones_rearranged")
OTHERS = ("anomaly", "bank", "ddl_late", "keys_oldcoll", "shard_mixed", "txn", "zones_unique")


def structures_of(capture: Capture, shown: StateAt) -> Structures:
    """The input of a load as of this state: the definitions of the history, and the texts that TiDB showed."""
    state = SchemaState().fold((ts, job) for ts, job in read_log(capture).jobs if ts <= shown.commit_ts)
    texts = {table["table"]: table["create"] for table in shown.contents if not table.get("absent")}
    tables = [
        BootstrapTable(table, texts[f"{table.db}.{table.name}"], 0)
        for table in state.list_tables()
        if table.kind == "table" and f"{table.db}.{table.name}" in texts
    ]
    sequences = [
        (table, texts[f"{table.db}.{table.name}"]) for table in state.list_tables() if table.kind == "sequence"
    ]
    needed = {table.db_id for table in (*(one.definition for one in tables), *(one for one, _ in sequences))}
    databases = [
        (db, f"CREATE DATABASE {quote_name(db.name)} /*!40100 DEFAULT CHARACTER SET {db.charset} */")
        for db in state.list_databases()
        if db.id in needed
    ]
    return Structures(state, tuple(databases), tuple(tables), tuple(sequences))


def plan_structures(found: Structures) -> list[LandedDdl]:
    jobs = found.build_jobs(FROM)
    binlogs = [WindowDdl(ts, ts - 1, job.id, 5, job.query) for ts, job in jobs]
    return plan_ddls(SchemaState(found.state.version - 1), binlogs, jobs, RULES, lo=FROM)


@pytest.fixture
def session(empty_mariadb: MariaDb) -> Iterator[TargetSession]:
    with closing(TargetSession(target_of(empty_mariadb))) as made:
        yield made


@pytest.mark.mariadb
@pytest.mark.parametrize("name", [*CHOSEN, *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS)])
def test_tables_are_created_from_tidbs_own_texts(name: str, session: TargetSession) -> None:  # S4-24
    capture = Capture(CAPTURES / name)
    found = structures_of(capture, list(capture.read_states())[-1])
    ddls = plan_structures(found)
    assert len(ddls) == len(found.databases) + len(found.sequences) + len(found.tables) >= 2
    # All tables are created although they share one version, that of the snapshot, which the load's rows name.
    assert {table.id for ddl in ddls for table in ddl.after.tables} == {
        *(one.definition.id for one in found.tables), *(one.id for one, _ in found.sequences)
    }  # fmt: skip
    for ddl in ddls:
        batch, reason = build_ddl_batch(0, ddl, "mariadb")
        assert batch is not None, reason
        for statement in batch.sql:
            session.execute(statement)
        expected = expect_after_ddl(ddl.before, ddl.after, "mariadb", ddl.action)
        there = read_definitions(session, expected.names, "mariadb")
        assert compare_definitions(expected, there, indexes=True) == []


@pytest.mark.parametrize("name", [*CHOSEN, *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS)])
def test_shown_columns_equal_those_of_the_history(name: str) -> None:  # S4-24
    capture = Capture(CAPTURES / name)
    shown = list(capture.read_states())[-1]
    own = {f"{one.definition.db}.{one.definition.name}": one.definition for one in structures_of(capture, shown).tables}
    recorded = {one["table"]: one for one in shown.contents if one["table"] in own}
    assert recorded
    for table, one in recorded.items():
        kinds = zip(one["columns"], one["types"], strict=True)
        # DATA_TYPE is the first word of COLUMN_TYPE, which SHOW COLUMNS has.
        assert derive_shape(own[table]) == tuple(
            derive_column_shape(n, re.split(r"\W", kind)[0], kind) for n, kind in kinds
        )
