"""Fixes reverted one by one: each makes the simulator fail within a few seeds of its scenario.

With the fixes in place, the same seeds pass; otherwise the failure would prove nothing.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from binlake.cluster.placement.lock import EtcdClaim
from binlake.cluster.source.tikv import TikvStatus
from binlake.lake import holdups
from binlake.pump_service.pd import oracle
from binlake.pump_service.pd.journal import PdJournal, Record, _read_body
from binlake.pump_service.pump import groupcommit, pull, recovery, retention, vlog
from binlake.pump_service.pump.follower import LogFollower
from binlake.pump_service.pump.future_timestamps import Ceiling
from binlake.pump_service.pump.groupcommit import Item, TimestampClaims
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import OLD_FOOTER, OLD_RECORD, RecordFrame, Stretch, Walk
from binlake.pump_service.pump.retention import Departure
from binlake.pump_service.pump.sorter import Sorter
from simulator import windows
from simulator.scenarios import shape_of
from simulator.truth import Truth, Wrong
from simulator.world import run

pytestmark = [pytest.mark.long, pytest.mark.soak]

FOUND_WITHIN = 25


def future_admitted(patch: pytest.MonkeyPatch) -> None:
    """Any timestamp is stored."""
    patch.setattr(Ceiling, "admits", lambda *_: True)


def old_framing(patch: pytest.MonkeyPatch) -> None:
    """Files use the original's format, in which anything that looks like a record or footer counts as one."""
    load, pass_over = vlog.ValueLog._load_max_ts, Walk._skip_damage

    def footer_of(self: vlog.ValueLog, fid: int) -> int | None:
        data = self._files.read(self._handle(fid), 0, self._files.read_size(self._handle(fid)))
        return RecordFrame(fid).decode_footer(data, len(data))

    def load_by_footer(self: vlog.ValueLog, at: int, known: Any) -> bool:
        max_ts = footer_of(self, self._fids[at])
        self._max_ts[self._fids[at]] = max_ts or 0
        return max_ts is not None or load(self, at, known)

    def walk_to_footer(self: vlog.ValueLog, fid: int, start: int, stop: int | None) -> Iterator[Stretch]:
        size = self._files.read_size(self._handle(fid))
        end = size if footer_of(self, fid) is None else size - OLD_FOOTER.size
        yield from Walk(
            self.look_up_frame(fid), partial(self._files.read, self._handle(fid)), start, min(end, stop or end)
        )

    def go_on_at_next_magic(self: Walk) -> bool:
        self._accepted = {self.at}
        return pass_over(self)

    patch.setattr(vlog, "build_head", lambda fid, _: (b"", RecordFrame(fid)))
    patch.setattr(vlog, "RECORD", OLD_RECORD)
    patch.setattr(groupcommit, "RECORD", OLD_RECORD)
    patch.setattr(vlog.ValueLog, "_load_max_ts", load_by_footer)
    patch.setattr(vlog.ValueLog, "_walk_file", walk_to_footer)
    patch.setattr(Walk, "_skip_damage", go_on_at_next_magic)
    patch.setattr(recovery, "_check_complete", lambda *_: None)


def second_replaces_first(patch: pytest.MonkeyPatch) -> None:
    """A binlog at a timestamp in use replaces the one before."""
    patch.setattr(TimestampClaims, "claim", lambda *_: (0, None))


def bound_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A bound of PD's clock takes effect before it is saved."""
    save = oracle.Oracle._save

    def counted(self: oracle.Oracle, saved: Any) -> None:
        self._saved = saved
        save(self, saved)

    patch.setattr(oracle.Oracle, "_save", counted)


def cut_at_damage(patch: pytest.MonkeyPatch) -> None:
    """PD cuts its journal off at the first damage."""

    def read(self: PdJournal) -> Iterator[Record]:
        data, at = self._path.read_bytes(), 0
        while at < len(data) and (body := _read_body(data, at)) is not None:
            yield data[at : at + 1], body
            at += 9 + len(body)
        os.ftruncate(self._file, at)

    patch.setattr(PdJournal, "read", read)


def journal_from_cache(patch: pytest.MonkeyPatch) -> None:
    """Everything that PD reads of its journal counts as durable."""
    patch.setattr(PdJournal, "_rewrite", lambda *_: None)


def no_claim(patch: pytest.MonkeyPatch) -> None:
    """Any process may use a node id."""
    patch.setattr(EtcdClaim, "take", lambda _: None)
    patch.setattr(EtcdClaim, "renew", lambda _: None)


def log_from_cache(patch: pytest.MonkeyPatch) -> None:
    """Everything that a pump reads of its value log counts as durable."""
    patch.setattr(recovery, "_rewrite", lambda files, found, *_: files.sync(found.file))


def acked_before_written(patch: pytest.MonkeyPatch) -> None:
    """An ack does not wait for the disk; only a consumer notices a loss."""
    put = groupcommit.GroupCommit.put

    def ack_and_put(self: groupcommit.GroupCommit, item: Item) -> None:
        item.done(None)
        put(self, Item(item.payload, item.head, lambda _: None))

    patch.setattr(groupcommit.GroupCommit, "put", ack_and_put)
    patch.setattr(Truth, "check_acked", lambda *_: None)


def holes_pass_for_durable(patch: pytest.MonkeyPatch) -> None:
    """Everything that LevelDB accepted counts as durable."""
    patch.setattr(PumpIndex, "is_durable", lambda _: True)


def open_prewrites_pass(patch: pytest.MonkeyPatch) -> None:
    """A watermark does not wait for a P without C or R."""
    patch.setattr(Sorter, "max_ts", property(lambda self: max(self._root.high, self._seen)))


def collected_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Binlogs are collected by age, even if a consumer needs them."""
    decide = retention.decide
    patch.setattr(
        retention, "decide", lambda rule, now, gc_ts, mark, _, oldest: decide(rule, now, gc_ts, mark, (), oldest)
    )


def collected_in_silence(patch: pytest.MonkeyPatch) -> None:
    """A pull continues across a range that was collected."""
    patch.setattr(pull, "_check_not_collected", lambda *_: None)


def prewrites_collected(patch: pytest.MonkeyPatch) -> None:
    """A file is removed although it holds the P of a transaction that is not collected."""
    patch.setattr(LogFollower, "find_needed_by_files", lambda _, fids: dict.fromkeys(fids, 0))


def left_too_early(patch: pytest.MonkeyPatch) -> None:
    """A closing pump is offline before every consumer has pulled what it holds."""

    def taken_by_nobody(self: Departure) -> str:
        self.compared_watermark = self._storage.watermark
        return ""

    patch.setattr(Departure, "_check_consumers", taken_by_nobody)


def members_before_clock(patch: pytest.MonkeyPatch) -> None:
    """A window uses the list of members from some windows before."""
    listed: defaultdict[int, deque[Any]] = defaultdict(partial(deque, maxlen=8))

    def plan(rules: Any, known: Any, clock: Any, registry: Any, probe: Any, *, stop_ts: Any) -> Any:
        listings = listed[id(registry)]
        listings.append(registry.list_pumps())
        return holdups.plan_next_window(
            rules, known, clock, SimpleNamespace(list_pumps=lambda: listings[0]), probe, stop_ts=stop_ts
        )

    patch.setattr(windows, "plan_next_window", plan)


def absence_passes_for_rollback(patch: pytest.MonkeyPatch) -> None:
    """A transaction that TiKV has no record of counts as rolled back, whatever its GC removed."""
    patch.setattr(TikvStatus, "protects", lambda *_: True)


@dataclass(frozen=True)
class Mutant:
    """A reverted fix, the scenario that finds it, the message then, and a seed from which it is found soon."""

    breaks: Callable[[pytest.MonkeyPatch], None]
    scenario: str
    told: str
    first: int = 0


MUTANTS = {
    "1 far future": Mutant(future_admitted, "far future", "is above every timestamp given"),
    "2 forged bytes": Mutant(old_framing, "forged bytes", r"which was not committed so|passed the open P", 2),
    "3 taken timestamps": Mutant(second_replaces_first, "taken timestamps", r"\d+ are missing up to"),
    "4 unsaved bounds": Mutant(bound_counts_at_once, "unsaved bounds", "TSO repeats"),
    "4 cut journal": Mutant(cut_at_damage, "flipped bits of PD", r"PD answered revision \d+ and knows"),
    "5 two of one name": Mutant(no_claim, "two of one address", "both take P"),
    "6 page cache": Mutant(log_from_cache, "failed syncs", "no record starts here|stored binlogs are lost"),
    "6 page cache of PD": Mutant(journal_from_cache, "page cache of PD", "pd refuses to start|PD answered revision"),
    "7 absence": Mutant(absence_passes_for_rollback, "regions and GC", "passed the open P", 8),
    "acks": Mutant(acked_before_written, "full disks", r"consumer-\d: \d+ are missing up to"),
    "GC and consumers": Mutant(collected_for_nobody, "collection", "has lost the range after"),
    "GC and pullers": Mutant(
        collected_in_silence,
        "collection",
        r"passed over \d+ of \d+ in a pull|a pull of .* ends: .* a commit has no prewrite",
    ),
    "GC and prewrites": Mutant(prewrites_collected, "collection", "a commit has no prewrite"),
    "leaving": Mutant(left_too_early, "members", "offline with unread binlogs"),
    "joining": Mutant(members_before_clock, "members", "are missing up to", 2),
    "index": Mutant(holes_pass_for_durable, "full disks and power", r"acked [PC] \d+ is lost", 54),
    "watermark": Mutant(open_prewrites_pass, "clocks", "passed the open P"),
}
"""By the number of the fault in issue 14; rules without a number were never broken on main."""


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulator_finds_each_reverted_fix(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # S0-16, S0-48, S0-57, R-09
    mutant = MUTANTS[name]
    for seed in range(mutant.first, mutant.first + FOUND_WITHIN):
        with monkeypatch.context() as patch:
            mutant.breaks(patch)
            broken = run(seed, shape_of(seed, mutant.scenario)).failure
        if broken is not None:
            assert isinstance(broken, Wrong), repr(broken)
            assert re.search(mutant.told, str(broken)), f"seed {seed} breaks for another reason: {broken}"
            report = run(seed, shape_of(seed, mutant.scenario))
            assert report.failure is None, report.told(mutant.scenario)
            return
    pytest.fail(f"{name}: broken, and {FOUND_WITHIN} seeds did not notice")
