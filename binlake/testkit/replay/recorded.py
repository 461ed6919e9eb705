"""The status port of a recorded TiDB: its answers come from the capture and from the outcomes of its transactions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from binlake.pump_service.statusport import Json, StatusJobs, StatusServer, build_mvcc_body, lock_record, write_record
from binlake.rpc import Tls
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.outcomes import Outcomes


def build_status_server(
    capture: Capture,
    outcomes: Outcomes,
    now: Callable[[], int],
    addr: str = "127.0.0.1:0",
    *,
    tls: Tls | None = None,
) -> StatusServer:
    """The status port of a recorded TiDB as of `now()`. Raises ConfigError, as StatusServer does."""
    return StatusServer(
        capture.meta, StatusJobs(capture.read_jobs()), RecordedMvcc.of(capture, outcomes), now, addr, tls=tls
    )


class RecordedMvcc:
    """Locks and write records of the primary keys in a capture.

    If the capture recorded a real answer for a key, its entries (with values) are used; the rest is derived from the
    binlogs.
    """

    def __init__(self, outcomes: Outcomes, recorded: Mapping[str, Sequence[Json]]) -> None:
        self._outcomes = outcomes
        self._recorded = recorded

    @classmethod
    def of(cls, capture: Capture, outcomes: Outcomes) -> RecordedMvcc:
        """Read the recorded answers in `http/`."""
        recorded: dict[str, list[Json]] = {}
        for answer in capture.read_http_answers():
            if answer["path"].startswith("/mvcc/hex/") and answer["status"] == 200:
                key = answer["path"].removeprefix("/mvcc/hex/").lower()
                recorded.setdefault(key, []).append(json.loads(answer["body"]))
        return cls(outcomes, recorded)

    def answer(self, key: bytes, now: int) -> Json:
        """The body of `/mvcc/hex/KEY`."""
        recorded = self._recorded.get(key.hex(), ())
        transactions = self._outcomes.by_key.get(key, [])
        writes = {write["start_ts"]: write for write in map(write_record, transactions)}
        values: dict[int, Json] = {}
        locks: dict[int, Json] = {}
        for then in (body["value"]["info"] for body in recorded):
            writes.update((write["start_ts"], write) for write in then.get("writes", ()))
            values.update((value["start_ts"], value) for value in then.get("values", ()))
            if "lock" in then:
                locks[then["lock"]["start_ts"]] = then["lock"]
        shown = sorted((w for w in writes.values() if w["commit_ts"] < now), key=lambda write: -int(write["commit_ts"]))
        undecided = [t for t in transactions if t.commit_ts >= now > t.start_ts]
        info: Json = {}
        if undecided:
            info["lock"] = locks.get(undecided[0].start_ts) or lock_record(undecided[0].start_ts, key)
        if shown:
            info["writes"] = shown
        if shown_values := [values[write["start_ts"]] for write in shown if write["start_ts"] in values]:
            info["values"] = shown_values
        region = recorded[0]["region_id"] if recorded else 1
        return build_mvcc_body(key, info, region)
