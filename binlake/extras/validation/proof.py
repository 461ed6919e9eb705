"""Decides when a source's current row proves an error at the target, from readings only, without any server.

The source is read in its present state, the target at its checkpoint, so two rows may differ because a change is still
on its way. They really differ if the source's row stayed the same from one reading to a later one, the lake has no
change of the row since the first reading, and everything that the source had executed by then is below the target's
checkpoint. Also, the first reading must not be older than the target, because a lagging replica shows old rows. What
the source had executed is a position in its log, as the server and its feeder report them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from binlake.cluster.source import StatusPort
from binlake.config.servers import SourceSection
from binlake.errors import BinlakeError, SourceUnavailable, WireError
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import Flavor
from binlake.rpc import Tls
from binlake.target.session.session import TargetSession

Positions = Mapping[str, str]
"""Source's name -> a position in its log, as text."""
Published = Callable[[Positions], int | None]
"""The commit_ts up to which the feeder has published everything up to these positions; None: not that far yet."""
_FILE_NUMBER = re.compile(r"\.(\d+)$")
_FEEDER = "/feeder"


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


@dataclass(frozen=True)
class LogPosition:
    """How far a server of family `flavor` has executed: its GTID set, or without GTIDs, up to `offset` of `file`."""

    flavor: str
    gtids: str
    file: str = ""
    offset: int = 0

    def has_done(self, other: LogPosition) -> bool:
        """Whether this position includes everything up to `other`, a position of the same source."""
        if self.gtids or other.gtids:
            flavor = Flavor(self.flavor)
            return parse_gtid_set(flavor, self.gtids).contains_set(parse_gtid_set(flavor, other.gtids))
        return (_parse_file_number(self.file), self.offset) >= (_parse_file_number(other.file), other.offset)

    def to_json(self) -> str:
        """The position as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> LogPosition:
        """Parse what `to_json` wrote."""
        return cls(**json.loads(text))


def _parse_file_number(file: str) -> int:
    match = _FILE_NUMBER.search(file)
    return int(match[1]) if match else 0


def read_log_position(session: TargetSession) -> LogPosition:
    """The present position of the server of `session`. Raises BinlakeError."""
    if "mariadb" in str(session.fetch_value("SELECT VERSION()")).lower():
        # This covers its own log and the transactions that it executed as a replica.
        return LogPosition(Flavor.MARIADB.value, str(session.fetch_value("SELECT @@GLOBAL.gtid_current_pos") or ""))
    if str(session.fetch_value("SELECT @@GLOBAL.gtid_mode")).upper() == "ON":
        return LogPosition(Flavor.MYSQL.value, str(session.fetch_value("SELECT @@GLOBAL.gtid_executed") or ""))
    try:
        rows = session.fetch_rows("SHOW BINARY LOG STATUS")
    except BinlakeError:  # before MySQL 8.2
        rows = session.fetch_rows("SHOW MASTER STATUS")
    if not rows:
        raise SourceUnavailable("the server writes no binary log and has no GTIDs", where={"server": session.place})
    return LogPosition(Flavor.MYSQL.value, "", str(rows[0][0]), int(rows[0][1]))


@dataclass(frozen=True)
class FeederPosition:
    """How far the feeder has read a source: everything up to this position has a commit_ts up to `commit_ts`."""

    gtids: str
    file: str
    offset: int
    commit_ts: int

    def to_log_position(self, flavor: str) -> LogPosition:
        """The same position as one of a server of family `flavor`."""
        return LogPosition(flavor, self.gtids, self.file, self.offset)


FeederPositions = Mapping[str, FeederPosition]
"""By source name."""


def read_feeder_positions(source: SourceSection) -> FeederPositions:
    """How far the feeder at `source.status-url` has read each source. Raises SourceUnavailable, WireError."""
    port = StatusPort(source.status_url, source.timeout_s, Tls.of(*source.security.list_files()))
    try:
        body = port.find(_FEEDER)
    finally:
        port.close()
    if body is None:
        raise SourceUnavailable(
            "the source's status port does not belong to a feeder",
            where={"status-url": source.status_url},
            hint="[[validation.source]] is for MySQL and MariaDB behind a feeder; for TiDB add [source.sql]",
        )
    try:
        statuses = json.loads(body)["sources"]
        return {status["source"]: _read_feeder_position(status) for status in statuses if "last_commit_ts" in status}
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the feeder's status cannot be read: {error!r}") from error


def _read_feeder_position(status: Mapping[str, Any]) -> FeederPosition:
    return FeederPosition(status["gtids"], status["file"], int(status["offset"]), int(status["last_commit_ts"]))


def find_published_ts(feeder_positions: FeederPositions, positions: Positions) -> int | None:
    """The commit_ts up to which the feeder has published everything up to `positions`; None: not that far yet."""
    reached = 0
    for name, text in positions.items():
        wanted, own = LogPosition.from_json(text), feeder_positions.get(name)
        if own is None or not own.to_log_position(wanted.flavor).has_done(wanted):
            return None
        reached = max(reached, own.commit_ts)
    return reached
