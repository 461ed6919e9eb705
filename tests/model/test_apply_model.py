"""Apply against a model: whatever happens to the applying processes, the target equals the source at each checkpoint.

Random schemas, transactions, DDL, windows, modes, faults; all from one seed (what is drawn:
docs/understand/apply-model.md). The named rules are broken on purpose below: each break fails within few seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from modelerrors import Wrong
from modelrun import Model, Shape
from modelshards import failures_of, replay_line, simplest
from simulator.faults.kinds import Kind

from binlake.changes.net import RowEvent
from binlake.changes.ordered import forms, rounds
from binlake.errors import BinlakeError
from binlake.statements import Phase
from binlake.statements.batch import UNCHECKED
from binlake.statements.literal import quote_qualified_name
from binlake.target.apply import batches, modes
from binlake.target.claim import fence, progress
from binlake.target.claim.checkpoint import Checkpoint
from binlake.target.claim.progress import TargetProgress
from binlake.target.ddl import intents
from binlake.target.segments import SegmentPlan
from binlake.target.session.session import TargetSession

pytestmark = [pytest.mark.mariadb, pytest.mark.timeout(600)]

PARTS, SEEDS, FOUND_WITHIN = 4, 16, 100


def brought_down(model: Model, seeds: Iterable[int]) -> None:
    """Run each seed; raises an error with the command that repeats a failed one."""
    for seed in seeds:
        try:
            model.run(seed)
        except (Wrong, BinlakeError) as error:
            pytest.fail(f"{error}\n{replay_line(seed)}\n{simplest(model, seed)}")


@pytest.mark.parametrize("part", range(PARTS))
def test_the_target_is_the_source_at_every_checkpoint(model: Model, part: int) -> None:
    # DESIGN 3.6 to 3.9, S0-65 to S0-72, S3-01, S3-05, S3-20, S4-12, S4-13, S4-33, S4-34, S4-36, S4-39, S4-40, S4-42,
    # S4-44, S4-45, S4-48, R-01, R-02, R-04, R-16, R-17, R-22, R-36, R-61
    first = int(os.environ.get("BINLAKE_MODEL_SEED", 0))
    if "BINLAKE_MODEL_SEED" in os.environ:
        brought_down(model, [first] if part == 0 else [])
        return
    brought_down(model, range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS))
    assert {Kind.APPLY_DIES, Kind.CONNECTIONS_KILLED, Kind.LATE_OWNER} <= set(model.happened)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_many_more_seeds_of_apply() -> None:
    # S4-48
    count, first = int(os.environ.get("MODEL_SEEDS", 20_000)), int(os.environ.get("BINLAKE_MODEL_SEED", 1_000_000))
    failed = failures_of(first, count, shards=os.cpu_count() or 1)
    assert not failed, "\n".join(failed)


def order_ignored(patch: pytest.MonkeyPatch) -> None:
    """Changes of one transaction are applied in any order: `sequence` is ignored."""
    patch.setattr(RowEvent, "position", property(lambda self: (self.commit_ts, self.start_ts, 0)))


def fence_unproved(patch: pytest.MonkeyPatch) -> None:
    """A process that was taken over continues writing: its transactions are counted, but its epoch is not checked."""

    def prove(self: fence.Fence, session: TargetSession) -> int:
        table = quote_qualified_name(self.schema, "binlake_fence")
        session.write(
            f"UPDATE {table} SET val = LAST_INSERT_ID(val + 1) WHERE task = %s AND worker = %s",
            (self.replication, self.worker),
        )
        return session.get_last_insert_id()

    patch.setattr(fence.Fence, "prove", prove)


def digest_unchecked(patch: pytest.MonkeyPatch) -> None:
    """A batch of that number is in the ledger, so it counts as applied, whatever its text."""
    for module in (modes, batches):
        patch.setattr(module, "is_recorded", lambda batch, digests: (batch.phase, batch.batch) in digests)


def manifest_unchecked(patch: pytest.MonkeyPatch) -> None:
    """The open window is finished with any manifest of its bounds."""
    patch.setattr(TargetProgress, "is_for", lambda self, m: (self.open_lo, self.open_hi) == (m.lo, m.hi))


def presence_unchecked(patch: pytest.MonkeyPatch) -> None:
    """Written statements are not checked for presence."""
    patch.setattr(modes, "require_present", lambda *_: None)


def phases_swapped(patch: pytest.MonkeyPatch) -> None:
    """First the writes, then the deletes."""
    patch.setattr(SegmentPlan, "phases", (Phase.WRITE, Phase.DELETE))


def ledger_unread(patch: pytest.MonkeyPatch) -> None:
    """A retry applies everything again."""
    patch.setattr(progress.WindowLedger, "read_digests", lambda *_, **__: {})
    patch.setattr(progress.WindowLedger, "write", lambda *_, **__: None)


def intent_ignored(patch: pytest.MonkeyPatch) -> None:
    """A DDL that was begun counts as run."""
    patch.setattr(intents, "_must_execute", lambda *_: False)


def always_consistent(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint always says `consistent`."""
    moved_to = Checkpoint.move_to
    patch.setattr(Checkpoint, "move_to", lambda self, *a, **_: moved_to(self, *a, consistent=True))


def conflicts_unseen(patch: pytest.MonkeyPatch) -> None:
    """Mode ordered looks only at a change's first key, and waits for nothing."""
    for strategy in (rounds.Causality, rounds.FlushAll):
        patch.setattr(strategy, "add", lambda _, keys: rounds.GroupDecision(False, keys[0]))


def missing_rows_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Mode ordered does not check how many rows an UPDATE changed."""
    update = forms.RowForms.update
    patch.setattr(forms.RowForms, "update", lambda *given: replace(update(*given), expect=UNCHECKED))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("broken", "shape", "first"),
    [
        pytest.param(order_ignored, Shape(faults=False), 0, id="order"),
        pytest.param(fence_unproved, Shape(ddl=False), 2, id="fence"),
        pytest.param(digest_unchecked, Shape(ddl=False), 25, id="digest"),
        pytest.param(manifest_unchecked, Shape(), 2, id="manifest"),
        pytest.param(presence_unchecked, Shape(faults=False, bytewise=True), 0, id="presence"),
        pytest.param(phases_swapped, Shape(faults=False, ddl=False), 0, id="phases"),
        pytest.param(ledger_unread, Shape(ddl=False), 1, id="ledger"),
        pytest.param(intent_ignored, Shape(), 29, id="intent"),
        pytest.param(always_consistent, Shape(), 10, id="consistent"),
        pytest.param(conflicts_unseen, Shape(faults=False, ddl=False), 9, id="conflicts"),
        pytest.param(missing_rows_passed_over, Shape(ddl=False), 26, id="missing rows"),
    ],
)
def test_the_model_finds_each_broken_rule(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[pytest.MonkeyPatch], None],
    shape: Shape,
    first: int,
) -> None:
    # A seed from `first` on finds it soon; the timing of threads may shift it.
    broken(monkeypatch)
    for seed in range(first, first + FOUND_WITHIN):
        try:
            model.run(seed, shape)
        except (Wrong, BinlakeError) as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail("no seed noticed")
