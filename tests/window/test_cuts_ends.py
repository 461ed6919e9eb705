"""Where a sink's window may end inside a landed window: never between a row that ran ahead and its DDL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from binlake.ddl.deciding import NOTHING
from binlake.ddl.definitions import LandedDdl
from binlake.errors import ConfigError
from binlake.window.cuts import require_outside_ddl

DDL = LandedDdl(100, 60, 90, 8, 1, 8, "d", "t", "", "DROP INDEX u ON t", "apply", "", NOTHING, NOTHING)


@pytest.mark.parametrize("hi", [59, 100, 130])
def test_end_outside_a_ddl_is_accepted(hi: int) -> None:
    assert require_outside_ddl([DDL], 20, hi) == hi


@pytest.mark.parametrize("hi", [60, 99])
def test_end_inside_a_ddl_is_refused_with_valid_alternatives(hi: int) -> None:  # issue 13 point 4
    with pytest.raises(
        ConfigError, match=r"lies inside a DDL.*ddl_from=60 ddl_commit_ts=100.*use 100 as the end.*below 60"
    ):
        require_outside_ddl([replace(DDL, commit_ts=40, since=40), DDL], 20, hi)


def test_filtered_ddl_does_not_restrict_the_end() -> None:
    assert require_outside_ddl([replace(DDL, decision="skip", reason="filtered")], 20, 80) == 80
