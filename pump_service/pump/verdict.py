"""Outcomes that an operator decides because no source knows them (hazards R-07): logged, counted, durable.

An operator can only decide a P that blocks the watermark, and never against what the source knows.
"""

from __future__ import annotations

import structlog

from binlake.cluster.source import Committed, Locked, RolledBack, Unknown
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.pump_service.pump.heads import Head, parse_head
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.resolver import StatusSource
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.storage import PumpStorage

log = structlog.get_logger()


class PrewriteVerdict:
    """Stores the outcome of a P by command."""

    def __init__(self, storage: PumpStorage, source: StatusSource, metrics: PumpMetrics) -> None:
        self._storage = storage
        self._source = source
        self._metrics = metrics

    def decide(self, start_ts: int, commit_ts: int) -> None:
        """Record that transaction `start_ts` committed at `commit_ts`, or was rolled back when that is 0; durable on
        return.

        Raises Permanent when no P with this start_ts waits or the source contradicts, ConfigError for an impossible
        commit_ts, Transient when it cannot be stored now.
        """
        prewrite = self._find_waiting(start_ts)
        if commit_ts and commit_ts <= max(start_ts, self._storage.watermark):
            raise ConfigError(
                "this cannot be the commit_ts: it is not above the start_ts and the watermark",
                where={"start_ts": start_ts, "commit_ts": commit_ts, "watermark": self._storage.watermark},
                hint="binlogs at or below the watermark may have landed already",
            )
        answer = self._check_source(prewrite, commit_ts)
        self._storage.end(start_ts, commit_ts or None)
        self._metrics.forced.add()
        log.warning("outcome_forced_by_command", start_ts=start_ts, commit_ts=commit_ts, source_said=answer)

    def give_up(self, start_ts: int, commit_ts: int) -> None:
        """Give up the C at `commit_ts` of transaction `start_ts`, whose P is missing: pulls skip it; durable on return.

        Raises Permanent when this commit does not exist, or its prewrite is in this pump.
        """
        where = {"start_ts": start_ts, "commit_ts": commit_ts}
        commit = self._read_head(commit_ts)
        if commit is None or (commit.kind, commit.start_ts) != (EntryKind.COMMIT, start_ts):
            raise Permanent("this pump stores no commit of this transaction at this commit_ts", where=where)
        prewrite = self._read_head(start_ts)
        if prewrite is not None and prewrite.kind is EntryKind.PREWRITE:
            raise Permanent("its prewrite is stored here: the transaction is complete", where=where)
        self._storage.lost.add(start_ts, commit_ts)
        self._metrics.given_up.add()
        log.warning("commit_without_prewrite_given_up_by_command", **where)

    def _read_head(self, ts: int) -> Head | None:
        pointer = self._storage.index.find_pointer(ts)
        return None if pointer is None else parse_head(self._storage.read(pointer))

    def _find_waiting(self, start_ts: int) -> SorterEntry:
        for entry in self._storage.list_waiting_prewrites():
            if entry.start_ts == start_ts:
                return entry
        raise Permanent(
            "no prewrite with this start_ts waits in this pump",
            where={"start_ts": start_ts},
            hint="its commit or rollback has arrived since, or another pump has it",
        )

    def _check_source(self, prewrite: SorterEntry, commit_ts: int) -> str:
        """The source's answer, if it does not contradict."""
        try:
            status = self._source.fetch_transaction_status(prewrite.start_ts, prewrite.key)
        except SourceUnavailable as error:
            return f"no answer: {error.message}"
        match status:
            case Committed(known) if known != commit_ts:
                known_outcome = f"it committed at {known}"
            case RolledBack() if commit_ts:
                known_outcome = "it was rolled back"
            case Locked():
                known_outcome = "its lock still exists, so it may still commit"
            case Unknown(reason):
                return reason
            case _:
                return "the same"
        raise Permanent(
            f"the source reports another outcome: {known_outcome}",
            where={"start_ts": prewrite.start_ts, "asked_for": commit_ts or "rolled back"},
            hint="the pump itself resolves transactions whose outcome the source knows",
        )
