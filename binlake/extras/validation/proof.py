"""Decides when a source's current row proves an error at the target, from readings only, without any server.

The source is read in its present state, the target at its checkpoint, so two rows may differ because a change is still
on its way. They really differ if the source's row stayed the same from one reading to a later one, the lake has no
change of the row since the first reading, and everything that the source had executed by then is below the target's
checkpoint. Also, the first reading must not be older than the target, because a lagging replica shows old rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

Positions = Mapping[str, str]
"""Source's name -> a position in its log, as text."""
Published = Callable[[Positions], int | None]
"""The commit_ts up to which the feeder has published everything up to these positions; None: not that far yet."""


@dataclass(frozen=True)
class RowReading:
    """A row at the target's checkpoint `ts` and the source's present row, and whether they are `equal`.

    `digest`: that of the source's row. `changed_ts`: that of its last known change in the lake, 0 = none. `is_fresh`:
    the source had executed everything below `ts` when its row was read. `positions`: the source's positions after the
    reading.
    """

    ts: int
    equal: bool
    digest: str
    changed_ts: int
    is_fresh: bool
    positions: Positions


@dataclass(frozen=True)
class Proof:
    """What is known about a row that differs: since checkpoint `ts` the source's row has `digest`.

    `places` (the name in stored ledgers): the source's positions at a later reading of the same row; `needed_ts`: the
    checkpoint that includes everything up to them, 0 = the feeder is not that far yet.
    """

    ts: int
    digest: str
    is_fresh: bool
    places: Positions = field(default_factory=dict)
    needed_ts: int = 0

    def to_json(self) -> str:
        """The proof as text for the ledger."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Proof:
        """Parse the result of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Judgement:
    """`proof` set: the row is still pending; `is_error`: it is proven wrong; neither: it is right."""

    proof: Proof | None = None
    is_error: bool = False


def judge(proof: Proof | None, reading: RowReading, published_ts: Published) -> Judgement:
    """Judge a row by `reading` and the proof from earlier readings."""
    if reading.equal:
        return Judgement()
    if proof is None or not _continues(proof, reading):
        return Judgement(Proof(reading.ts, reading.digest, reading.is_fresh))
    # Use positions of a second reading: a commit is visible to others shortly before its GTID is.
    positions = proof.places or reading.positions
    needed = proof.needed_ts
    if not needed:
        needed = published_ts(positions) or 0
    if needed and needed <= reading.ts:
        return Judgement(is_error=True)
    return Judgement(replace(proof, places=positions, needed_ts=needed))


def _continues(proof: Proof, reading: RowReading) -> bool:
    unchanged = reading.digest == proof.digest and reading.changed_ts <= proof.ts
    return proof.is_fresh and unchanged
