"""Mendings taken back one by one: each makes the simulator fail within a few seeds of the scenario it belongs to.

The same seeds hold with the mendings in place, or the failure would prove nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from binlake.placement.claim import EtcdClaim
from pump_service.pd import oracle
from pump_service.pd.journal import Journal, Record, _body
from pump_service.pump import fileend, vlog
from pump_service.pump.ceiling import Ceiling
from pump_service.pump.index import Index
from pump_service.pump.record import Frame
from pump_service.pump.sorter import Sorter
from pump_service.pump.taken import Claim, Taken
from simulator.scenarios import shape_of
from simulator.world import run

FOUND_WITHIN = 25


def future_admitted(patch: pytest.MonkeyPatch) -> None:
    """Any timestamp is stored."""
    patch.setattr(Ceiling, "admits", lambda *_: True)


def old_framing(patch: pytest.MonkeyPatch) -> None:
    """Files are written as the original does: what looks like a record or a footer is one."""
    patch.setattr(vlog, "new_head", lambda fid, _: (b"", Frame(fid)))


def second_replaces_first(patch: pytest.MonkeyPatch) -> None:
    """A binlog at a taken timestamp takes the place of the one before."""
    patch.setattr(Taken, "claim", lambda *_: Claim(0, None))


def bound_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A bound of PD's clock is in force before it is saved."""
    save = oracle.Oracle._save

    def counted(self: oracle.Oracle, saved: Any) -> None:
        self._saved = saved
        save(self, saved)

    patch.setattr(oracle.Oracle, "_save", counted)


def cut_at_damage(patch: pytest.MonkeyPatch) -> None:
    """PD's journal ends at the first damage."""

    def read(self: Journal) -> Iterator[Record]:
        data, at = self._path.read_bytes(), 0
        while at < len(data) and (body := _body(data, at)) is not None:
            yield data[at : at + 1], body
            at += 9 + len(body)
        os.ftruncate(self._file, at)

    patch.setattr(Journal, "read", read)


def journal_from_cache(patch: pytest.MonkeyPatch) -> None:
    """What PD reads of its journal counts as being on the disk."""
    patch.setattr(Journal, "_write_anew", lambda *_: None)


def no_claim(patch: pytest.MonkeyPatch) -> None:
    """A node id belongs to whoever says so."""
    patch.setattr(EtcdClaim, "take", lambda _: None)
    patch.setattr(EtcdClaim, "renew", lambda _: None)


def log_from_cache(patch: pytest.MonkeyPatch) -> None:
    """What a pump reads of its value log counts as being on the disk."""
    patch.setattr(fileend, "_write_again", lambda files, found, *_: files.sync(found.file))


def acked_before_synced(patch: pytest.MonkeyPatch) -> None:
    """An ack does not wait for the disk."""
    patch.setattr(vlog.ValueLog, "_flush", lambda *_: None)


def holes_pass_for_durable(patch: pytest.MonkeyPatch) -> None:
    """All that LevelDB took counts as being on the disk."""
    patch.setattr(Index, "durable", lambda _: True)


def open_prewrites_pass(patch: pytest.MonkeyPatch) -> None:
    """A watermark does not wait for a P without its end."""
    patch.setattr(Sorter, "max_ts", property(lambda self: max(self._root.high, self._seen)))


@dataclass(frozen=True)
class Mutant:
    """A mending taken back, the scenario that finds it, and a seed from which it is found soon."""

    breaks: Callable[[pytest.MonkeyPatch], None]
    scenario: str
    first: int = 0


MUTANTS = {
    "1 far future": Mutant(future_admitted, "far future"),
    "2 forged bytes": Mutant(old_framing, "forged bytes"),
    "3 taken timestamps": Mutant(second_replaces_first, "taken timestamps"),
    "4 unsaved bounds": Mutant(bound_counts_at_once, "unsaved bounds"),
    "4 cut journal": Mutant(cut_at_damage, "flipped bits of PD"),
    "5 two of one name": Mutant(no_claim, "two of one address"),
    "6 page cache": Mutant(log_from_cache, "failed syncs"),
    "6 page cache of PD": Mutant(journal_from_cache, "placement driver"),
    "acks": Mutant(acked_before_synced, "processes"),
    "index": Mutant(holes_pass_for_durable, "full disks and power"),
    "watermark": Mutant(open_prewrites_pass, "clocks"),
}
"""By the number of the fault in issue 14; those without one are rules that were never broken on main."""


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mending_that_is_taken_back_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # S0-16, S0-48, S0-57, R-09
    mutant = MUTANTS[name]
    for seed in range(mutant.first, mutant.first + FOUND_WITHIN):
        with monkeypatch.context() as patch:
            mutant.breaks(patch)
            broken = run(seed, shape_of(seed, mutant.scenario)).failure
        if broken is not None:
            report = run(seed, shape_of(seed, mutant.scenario))
            assert report.failure is None, report.told(mutant.scenario)
            return
    pytest.fail(f"{name}: broken, and {FOUND_WITHIN} seeds did not notice")
