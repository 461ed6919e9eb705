"""When the present row of a source proves an error at the target: a decision over readings, free of servers.

The source is read as it is now, the target at its checkpoint, so two rows may differ because a change is on its way.
They differ for good when the source's row stayed the same from one reading to a later one, the lake has no change of
the row since the first, and everything that the source had done by then is below the target's checkpoint. And the
first reading itself must not be older than the target: a lagging replica shows old rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace

Places = Mapping[str, str]
"""Source's name -> a place of its log, as text."""
Published = Callable[[Places], int | None]
"""The commit_ts below or at which the feeder has published all up to these places; None: it is not as far."""


@dataclass(frozen=True)
class Reading:
    """A row at the target's checkpoint `ts` and at the source, now: are they `equal`?

    `digest`: of the source's row. `changed_ts`: of its last change in the lake that is known, 0 = none. `is_fresh`: the
    source had done all that is below `ts` when its row was read. `places`: of the source, after that.
    """

    ts: int
    equal: bool
    digest: str
    changed_ts: int
    is_fresh: bool
    places: Places


@dataclass(frozen=True)
class Proof:
    """What is known of a row that differs: since checkpoint `ts` the source's row is `digest`.

    `places`: of the source at a later reading of the same row; `needed_ts`: the checkpoint that has all up to them, 0 =
    the feeder is not as far.
    """

    ts: int
    digest: str
    is_fresh: bool
    places: Places = field(default_factory=dict)
    needed_ts: int = 0

    def to_json(self) -> str:
        """For the ledger."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Proof:
        """The value of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Judged:
    """`proof`: the row is still pending; `is_error`: it is proven wrong; neither: it is as it must be."""

    proof: Proof | None = None
    is_error: bool = False


def judge(proof: Proof | None, reading: Reading, published: Published) -> Judged:
    """What `reading` adds to what earlier ones left."""
    if reading.equal:
        return Judged()
    if proof is None or not _continues(proof, reading):
        return Judged(Proof(reading.ts, reading.digest, reading.is_fresh))
    # Places of a second reading: a commit is visible to others a moment before its GTID is.
    places = proof.places or reading.places
    needed = proof.needed_ts
    if not needed:
        needed = published(places) or 0
    if needed and needed <= reading.ts:
        return Judged(is_error=True)
    return Judged(replace(proof, places=places, needed_ts=needed))


def _continues(proof: Proof, reading: Reading) -> bool:
    unchanged = reading.digest == proof.digest and reading.changed_ts <= proof.ts
    return proof.is_fresh and unchanged
