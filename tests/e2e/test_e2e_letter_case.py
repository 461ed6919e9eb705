"""Names with capital letters on a target that compares names without case: lower_case_table_names = 1 and 2."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.mariadb import MariaDb

from binlake.config.servers import TargetSection
from binlake.target import TargetSession
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import read_log
from deploy.local.direct import DirectReplay

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e, pytest.mark.soak]

CAPTURE = Path(__file__).parent.parent / "captures" / "shard_mixed"


@pytest.mark.parametrize(("mode", "names"), [(1, ["filiale_a1", "filiale_b2"]), (2, ["Filiale_A1", "Filiale_B2"])])
def test_every_statement_is_accepted_and_has_the_expected_effect(mode: int, names: list[str]) -> None:  # issue 13.1
    log = read_log(Capture(CAPTURE))
    with MariaDb(options=(f"--lower-case-table-names={mode}",)) as server:
        target = TargetSection(db_type="mariadb", host=server.host, port=server.port, user=server.user)
        with closing(TargetSession(target)) as session:
            replay = DirectReplay(log, session)
            replay.advance(log.rows[-1][0])
            assert [name for (name,) in session.fetch_rows("SHOW DATABASES LIKE '%iliale%'")] == names
    assert (replay.applied.ddls, replay.applied.rows) == (41, 743)
