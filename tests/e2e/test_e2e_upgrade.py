"""Deployments that older releases left in the middle of their work are continued by the current code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.feeding import FedCluster, contents
from support.feedload import run_windows
from support.mariadb import MariaDb, execute, mariadb_in_memory
from support.releases import (
    RELEASES,
    build_sections,
    build_source,
    change_rows,
    load_release,
    unpack_release,
)

from binlake.audit.audit import Audit
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.repair.verify import verify
from binlake.rules import Rules

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.mark.parametrize("version", sorted(one.name for one in RELEASES.iterdir()))
def test_deployment_of_an_older_release_is_continued(
    version: str, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    facts = unpack_release(version, tmp_path)
    sections = build_sections(tmp_path)
    with mariadb_in_memory(MariaDb.list_source_options()) as source:
        load_release(version, source, "source")
        execute(source, "RESET MASTER", f"SET GLOBAL gtid_binlog_state = '{facts['gtid_binlog_state']}'")
        load_release(version, mariadb, "target")
        with FedCluster(tmp_path, mariadb, [build_source(source)], pumps=1, gc_s=0) as cluster:
            cluster.start_feeder()
            execute(source, "UPDATE shop.item SET note = 'fourth', more = 7")
            change_rows(source, 5)
            cluster.follow(source)
            run_windows(cluster, target, **sections)
            assert contents(mariadb, "shop") == contents(source, "shop")

            replication = cluster.replication(target=target, **sections)
            assert verify(replication).equal
            paths = LakePaths.of(replication)
            audit = Audit(paths, Rules.of(replication), WindowLog(paths))
            notes = [one.after["note"] for one in audit.read_row_history("shop", "item", ["1"]) if one.after]
            assert notes == ["große", "second", "third", "fourth"]
            early = audit.read_table_as_of("shop", "t", int(facts["early"]["ts"]))
            assert sorted(int(row["id"]) for row in early.rows) == facts["early"]["rows"]
