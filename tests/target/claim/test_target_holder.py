"""`describe_holder` shows who blocks the target; it takes no lock and decides nothing."""

import pytest
from support.mariadb import MariaDb, execute
from support.windows import NAME

from binlake.config.servers import TargetSection
from binlake.target import TargetSession
from binlake.target.claim.fence import describe_holder, take_fence
from binlake.target.session.tables import create_tables

pytestmark = pytest.mark.mariadb


def test_lease_is_described_while_its_holder_may_live(target: TargetSection, server: MariaDb) -> None:
    assert describe_holder(target, NAME) == ""
    session = TargetSession(target)
    create_tables(session, target.checkpoint_schema)
    fence = take_fence(session, target, NAME)
    assert "applies this replication until" in describe_holder(target, NAME)
    assert describe_holder(target, "another") == ""
    execute(server, "UPDATE tidb_binlog.binlake_lease SET owner = 'elsewhere:1:1'")
    assert describe_holder(target, NAME).startswith("elsewhere:1:1")
    execute(server, "UPDATE tidb_binlog.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    assert describe_holder(target, NAME) == ""
    fence.release(session)
    session.close()


def test_ended_process_of_this_host_holds_nothing(target: TargetSection, server: MariaDb) -> None:
    session = TargetSession(target)
    create_tables(session, target.checkpoint_schema)
    fence = take_fence(session, target, NAME)
    execute(server, "UPDATE tidb_binlog.binlake_lease SET owner = REGEXP_REPLACE(owner, '[0-9]+$', '1')")
    assert describe_holder(target, NAME) == ""
    fence.release(session)
    assert describe_holder(target, NAME) == ""
    session.close()
