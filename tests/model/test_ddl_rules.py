"""Rules of DDL broken on purpose: each break makes the DDL model fail within a few of CI's seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from ddlrun import SHAPE, DdlModel, DdlShape
from modelerrors import Wrong

from binlake.common import sqllink
from binlake.ddl import ddls, deciding
from binlake.ddl.definitions import RENAMED_IN, LandedDdl
from binlake.dialect import altertable, clauses, mapping
from binlake.dialect.conversions import AlterTable
from binlake.errors import BinlakeError
from binlake.rows.codec import batch
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.partitions import Emptied
from binlake.spark_jobs.land import ddljobs as jobs
from binlake.target.apply import apply
from binlake.target.claim import writers
from binlake.target.ddl import intents
from binlake.target.ddl.proof import Evidence, Verdict
from binlake.target.definitions import definitions, forms
from binlake.target.session import tables

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

FOUND_WITHIN = 30
QUIET = DdlShape(features=SHAPE.features, faults=False)


def names_as_written(patch: pytest.MonkeyPatch) -> None:
    """A statement names its tables in the letter case that its session typed."""
    patch.setattr(deciding, "put_target_names", lambda query, *_: query)


def rows_unseen(patch: pytest.MonkeyPatch) -> None:
    """The same, and an error of a statement that removes rows is ignored if the definitions look right."""
    names_as_written(patch)
    patch.setattr(definitions, "moves_rows", lambda _: False)
    patch.setattr(definitions, "find_remaining_rows", lambda *_: [])
    patch.setattr("binlake.target.ddl.proof.find_remaining_rows", lambda *_: [])


def renamed_out_kept(patch: pytest.MonkeyPatch) -> None:
    """A table that a RENAME takes out of the filter stays, although another one gets its name."""
    patch.setattr(ddls.Judge, "_is_dropped_when_renamed_out", lambda *_: False)


def renamed_in_unseen(patch: pytest.MonkeyPatch) -> None:
    """A RENAME takes a table whose rows the target lacks into the filter, and nobody is asked."""
    judge = ddls.Judge._judge_rename_across_filter

    def passed(*given: Any) -> LandedDdl | None:
        judged = judge(*given)
        refused = judged is not None and judged.decision == "refused"
        return replace(judged, decision="skip", reason=RENAMED_IN) if judged is not None and refused else judged

    patch.setattr(ddls.Judge, "_judge_rename_across_filter", passed)


def always_utc(patch: pytest.MonkeyPatch) -> None:
    """Every DDL counts as one of a session at +00:00."""
    session_of = SourceSession.of
    patch.setattr(SourceSession, "of", lambda *given: replace(session_of(*given), zone="+00:00"))


def defaults_as_written(patch: pytest.MonkeyPatch) -> None:
    """The default of a TIMESTAMP is the text of the statement, which is in its session's zone."""
    patch.setattr(clauses, "put_stored_default", lambda column, _: list(column))


def bounds_as_written(patch: pytest.MonkeyPatch) -> None:
    """Bounds of partitions are the expressions of the statement, which its session computed in its own zone."""
    patch.setattr(mapping, "put_stored_bounds", lambda tokens, _: list(tokens))


def behind_its_binlog(patch: pytest.MonkeyPatch) -> None:
    """A DDL is applied at the position of its binlog, even if earlier rows already saw its effect."""
    patch.setattr("binlake.rows.schema.window.compute_effective_ts", lambda _, commit_ts: commit_ts)


def late_rows_as_logged(patch: pytest.MonkeyPatch) -> None:
    """A row of a transaction that began before a DDL of partitions is applied to the table for which it is logged."""
    patch.setattr(Emptied, "holds", lambda *_: False)


def second_writes_as_logged(patch: pytest.MonkeyPatch) -> None:
    """A change that TiDB logs twice while it rearranges partitions is applied twice."""
    patch.setattr(batch, "without_echoes", lambda found, *_: (found, np.arange(found.num_rows), None))


def windows_end_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A window may end between a row and the DDL that it ran ahead of."""
    patch.setattr(jobs, "_lower_before_rows_ahead", lambda _, bounds, __: bounds.hi)


def target_converts(patch: pytest.MonkeyPatch) -> None:
    """MODIFY COLUMN follows the target's own conversion rules."""
    patch.setattr(AlterTable, "find_conversions", lambda *_: [])


def fills_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """ADD COLUMN fills old rows with the target's own empty value."""
    patch.setattr(altertable, "build_fill_specs", lambda specs, *_: (list(specs), []))


def other_numbers_are_proof(patch: pytest.MonkeyPatch) -> None:
    """A DDL that was begun counts as run when its tables have other ids."""

    def judged(before: Evidence, now: Evidence, _after: object) -> Verdict:
        return "before" if (before.texts, before.numbers) == (now.texts, now.numbers) else "after"

    patch.setattr(intents, "judge", judged)


def copies_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """A process that reconnects continues with whatever the target has, even if something is missing."""
    patch.setattr(writers.ConfirmedTransactions, "require_all", lambda *_: None)
    patch.setattr(apply, "require_complete_ledger", lambda *_: None)


def any_engine_is_written(patch: pytest.MonkeyPatch) -> None:
    """Rows are written into tables of any engine."""
    patch.setattr(forms, "_list_engines_without_transactions", lambda _: frozenset())


def engine_by_default(patch: pytest.MonkeyPatch) -> None:
    """A CREATE TABLE uses the server's default engine."""
    patch.delitem(cast("dict[str, str]", sqllink.VARIABLES), "default_storage_engine")


def any_ledger_is_trusted(patch: pytest.MonkeyPatch) -> None:
    """The ledger, the checkpoint and Binlake's other tables may use any engine."""
    patch.setattr(tables, "require_transactions", lambda *_: None)


Broken = Callable[[pytest.MonkeyPatch], None]
RULES: dict[str, tuple[Broken, DdlShape, int]] = {
    "1 names": (names_as_written, QUIET, 0),
    "1 rows": (rows_unseen, QUIET, 0),
    "2 renames": (renamed_out_kept, QUIET, 6),
    "2 renames into": (renamed_in_unseen, QUIET, 0),
    "3 zones": (always_utc, QUIET, 19),
    "3 defaults": (defaults_as_written, QUIET, 43),
    "3 bounds": (bounds_as_written, QUIET, 4),
    "4 and 5 ahead": (behind_its_binlog, QUIET, 0),
    "5 exchanged": (late_rows_as_logged, QUIET, 3),
    "5 written twice": (second_writes_as_logged, QUIET, 29),
    "4 window ends": (windows_end_anywhere, QUIET, 0),
    "6 conversions": (target_converts, QUIET, 2),
    "6 fills": (fills_of_its_own, QUIET, 29),
    "7 proof": (other_numbers_are_proof, SHAPE, 0),
    "8 failover": (copies_unnoticed, SHAPE, 2),
    "9 engines": (any_engine_is_written, SHAPE, 2),
    "9 default engine": (engine_by_default, QUIET, 9),
    "9 own tables": (any_ledger_is_trusted, SHAPE, 17),
}
"""Each by the number of the fault that the rule prevents; `first`: a seed from which it is found soon."""


@pytest.mark.soak
@pytest.mark.parametrize("name", RULES)
def test_the_model_finds_each_broken_rule_of_ddl(
    ddl_model: DdlModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    #
    broken, shape, first = RULES[name]
    broken(monkeypatch)
    for seed in range(first, first + FOUND_WITHIN):
        try:
            ddl_model.run_ddl(seed, shape)
        except (Wrong, BinlakeError) as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{name}: broken, and {FOUND_WITHIN} seeds did not notice")
