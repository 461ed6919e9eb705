"""Asks TiKV directly for the outcomes of transactions, many at once (tidb-binlog 2.6; kvproto: kvrpcpb).

There are three ways to ask, each stronger than the one before. LOOK reads the records of the key and changes nothing.
EXPIRE rolls the transaction back if its lock has expired, as any reader would. END also writes a rollback record if
there is neither lock nor record, so that no commit can follow.

END proves nothing if GC may have removed a commit record, so it is used only for transactions above a GC safe point
that PD has granted (`protect`). For other transactions, no lock and no record means Unknown (hazards R-07).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from google.protobuf.message import DecodeError

from binlake import tso
from binlake.cluster.source.protocol import Absent, Committed, Locked, RolledBack, Status, Unknown, Unreachable
from binlake.cluster.source.regions import RegionClient, RegionLocation
from binlake.errors import SourceUnavailable
from binlake.rpc import Channel, PendingCall, RpcError, Tls
from binlake.wire import tikv_pb2 as pb

HOLD_S = 86400
"""Seconds for which PD holds GC for this service after its last call (as TiCDC's gc-ttl)."""

_AT_ONCE = 256  # concurrent calls to one store
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # pause between two tries
_ROLLBACK = 3
_LOOK, _CHECK = "/tikvpb.Tikv/MvccGetByKey", "/tikvpb.Tikv/KvCheckTxnStatus"


class How(Enum):
    """How strongly to ask; see the module's docstring."""

    LOOK = "look"
    EXPIRE = "expire"
    END = "end"


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for the outcome of the transaction `start_ts`, whose primary key is `key` (raw)."""

    start_ts: int
    key: bytes
    how: How


_Turn = dict[int, Question]


class TikvStatus:
    """Asks the stores that `regions` names, with `tls`; `service`: the name under which PD holds GC.

    Thread-safe, except for `protect`, which only one thread may call.
    """

    def __init__(self, regions: RegionClient, service: str, *, tls: Tls | None = None, timeout_s: float = 10.0) -> None:
        self._regions = regions
        self._service = service
        self._tls = tls
        self._timeout_s = timeout_s
        self._channels: dict[str, Channel] = {}
        self._connecting = threading.Lock()
        self._held: float = math.inf  # GC stays at or below this ts
        self._stopped = threading.Event()

    def protect(self, oldest: int) -> None:
        """Keep GC from passing the transaction `oldest`, if still possible; 0 = no transaction is open.

        Raises SourceUnavailable.
        """
        if not oldest:
            if self._held != math.inf:
                self._regions.hold_gc(self._service, 0, 0)
                self._held = math.inf
            return
        safe_point, self._held = oldest - 1, math.inf
        # PD accepts only a value at or above the lowest of all services: GC cannot go back.
        for _ in range(3):
            least = self._regions.hold_gc(self._service, safe_point, HOLD_S)
            if least <= safe_point:
                self._held = max(safe_point, self._regions.fetch_gc_safe_point())
                return
            safe_point = least

    def protects(self, start_ts: int) -> bool:
        """Whether it is certain that GC has not passed `start_ts`."""
        return start_ts > self._held

    def ask(self, questions: Sequence[Question], now_ts: int) -> list[Status]:
        """An answer to each question; Unreachable if it could not be asked. `now_ts` is a fresh timestamp of PD."""
        answers: dict[int, Status] = {}
        turn: _Turn = {}
        for number, question in enumerate(questions):
            if question.key:
                turn[number] = question
            else:
                answers[number] = Unknown("its prewrite has no key to look up")
        reasons: dict[int, str] = {}
        until = time.monotonic() + self._timeout_s
        for pause_s in (*_PAUSES_S, 0.0):
            reasons = self._ask_round(turn, now_ts, answers)
            turn = {number: turn[number] for number in reasons}
            if not turn or time.monotonic() + pause_s > until or self._stopped.wait(pause_s):
                break
        answers.update(
            (number, Unreachable(f"TiKV does not report it: {reason}")) for number, reason in reasons.items()
        )
        return [answers[number] for number in range(len(questions))]

    def stop(self) -> None:
        """Stop retrying."""
        self._stopped.set()

    def close(self) -> None:
        """Close the connections."""
        self.stop()
        for channel in self._channels.values():
            channel.close()
        self._regions.close()

    def _ask_round(self, turn: _Turn, now_ts: int, answers: dict[int, Status]) -> dict[int, str]:
        """Ask each question once; returns the reasons for those that must be asked again."""
        failed: dict[int, str] = {}
        numbers = list(turn)
        for begin in range(0, len(numbers), _AT_ONCE):
            part = {number: turn[number] for number in numbers[begin : begin + _AT_ONCE]}
            for number, location, pending in self._send(part, now_ts, failed):
                try:
                    outcome = _read(turn[number], pending.await_result(), now_ts)
                except (RpcError, DecodeError) as error:
                    self._lose(location, str(error), failed, number)
                    continue
                if isinstance(outcome, pb.RegionError):
                    failed[number] = self._follow_region_error(location, outcome)
                else:
                    answers[number] = self._judge(turn[number], outcome)
        return failed

    def _send(
        self, part: Mapping[int, Question], now_ts: int, failed: dict[int, str]
    ) -> list[tuple[int, RegionLocation, PendingCall]]:
        sent = []
        for number, question in part.items():
            try:
                location = self._regions.find(question.key)
                channel = self._open_channel(self._regions.find_address(location))
            except SourceUnavailable as error:
                failed[number] = str(error)
                continue
            method, message = self._build_request(question, location, now_ts)
            try:
                sent.append((number, location, channel.start(method, message, self._timeout_s)))
            except RpcError as error:
                self._lose(location, str(error), failed, number)
        return sent

    def _build_request(self, question: Question, location: RegionLocation, now_ts: int) -> tuple[str, bytes]:
        if question.how is How.LOOK:
            return _LOOK, pb.MvccGetByKeyRequest(context=location.context, key=question.key).SerializeToString()
        start_ts = question.start_ts
        return _CHECK, pb.CheckTxnStatusRequest(
            context=location.context,
            primary_key=question.key,
            lock_ts=start_ts,
            caller_start_ts=start_ts,
            current_ts=now_ts,
            rollback_if_not_exist=question.how is How.END and self.protects(start_ts),
            verify_is_primary=True,
        ).SerializeToString()

    def _judge(self, question: Question, status: Status) -> Status:
        if question.how is How.END and isinstance(status, Absent) and not self.protects(question.start_ts):
            return Unknown("TiKV has neither lock nor record of it, and GC may have removed a commit record")
        return status

    def _follow_region_error(self, location: RegionLocation, error: pb.RegionError) -> str:
        """Update the cache by TiKV's region error; returns the error as text."""
        if error.HasField("not_leader") and error.not_leader.leader.id:
            self._regions.lead(location, error.not_leader.leader)
        elif not error.HasField("server_is_busy"):
            self._regions.forget(location)
        return error.message or "region error"

    def _lose(self, location: RegionLocation, reason: str, failed: dict[int, str], number: int) -> None:
        self._regions.forget(location)
        failed[number] = reason

    def _open_channel(self, address: str) -> Channel:
        with self._connecting:
            if address not in self._channels:
                self._channels[address] = Channel(address, tls=self._tls, connect_timeout_s=self._timeout_s)
            return self._channels[address]


def is_expired(status: Status, start_ts: int, now_ts: int, grace_ms: int) -> bool:
    """Whether a lock expired more than `grace_ms` milliseconds ago, so that its holder has ended."""
    if not isinstance(status, Locked) or not status.ttl_ms:
        return False
    return tso.extract_physical(start_ts) + status.ttl_ms + grace_ms < tso.extract_physical(now_ts)


def _read(question: Question, answer: bytes, now_ts: int) -> Status | pb.RegionError:
    if question.how is How.LOOK:
        looked = pb.MvccGetByKeyResponse.FromString(answer)
        return (
            looked.region_error if looked.HasField("region_error") else _parse_records_status(looked, question.start_ts)
        )
    checked = pb.CheckTxnStatusResponse.FromString(answer)
    return (
        checked.region_error
        if checked.HasField("region_error")
        else _parse_check_status(checked, question.start_ts, now_ts)
    )


def _parse_records_status(answer: pb.MvccGetByKeyResponse, start_ts: int) -> Status:
    if answer.error:
        return Unknown(answer.error)
    for write in answer.info.writes:
        if write.start_ts == start_ts:
            return RolledBack() if write.type == _ROLLBACK else Committed(write.commit_ts)
        if write.commit_ts == start_ts and write.has_overlapped_rollback:
            return RolledBack()  # the rollback is stored as a flag in the record of another transaction
    if answer.info.lock.start_ts == start_ts:
        return Locked(answer.info.lock.ttl)
    return Absent()


def _parse_check_status(answer: pb.CheckTxnStatusResponse, start_ts: int, now_ts: int) -> Status:
    if answer.HasField("error"):
        return Absent() if answer.error.HasField("txn_not_found") else Unknown(f"TiKV: {_describe_error(answer.error)}")
    if answer.commit_version:
        return Committed(answer.commit_version)
    if answer.lock_ttl:
        locked = Locked(answer.lock_ttl)
        if answer.lock_info.use_async_commit and is_expired(locked, start_ts, now_ts, 0):
            return Unknown("it has a lock of async commit, which a reader of its rows resolves")
        return locked
    # Removing only a pessimistic lock leaves no record; the next question gets the final answer.
    leaves_no_record = answer.action in (pb.TTLExpirePessimisticRollback, pb.LockNotExistDoNothing)
    return Absent() if leaves_no_record else RolledBack()


def _describe_error(error: pb.KeyError) -> str:
    if error.HasField("primary_mismatch"):
        return "its key is not the primary key of its transaction"
    return error.abort or error.retryable or "an error of the key"
