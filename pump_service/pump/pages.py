"""The pump's pages: the original's paths and answers (tidb-binlog 2.13), and a few of Binlake's.

As in the original, a page reports an error as HTTP 200 with its text, or with the envelope `{message, code, data}`.
Only unknown paths (404), methods (405), callers without permission (403, see `Gate`) and probes (503) use the status.

The original's commands (pause, close, gc) stay open to binlogctl, which cannot authenticate, unless the operator
configures otherwise; they are never open to another site's page in a user's browser. Binlake's own commands decide what
happens to data, so they need the token or a client certificate. A stored binlog is shown in the original's text form,
or as JSON with its tables and row counts (S0-75).
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from binlake.cluster.node import OFFLINE
from binlake.errors import BinlakeError, ConfigError, Permanent
from binlake.pump_service.monitoring import HEALTHZ, METRICS_CONTENT_TYPE, READYZ, Probes
from binlake.pump_service.pump.heads import parse_head
from binlake.pump_service.pump.membership import ClusterClock, Members
from binlake.pump_service.pump.outcomes import PrewriteVerdict
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.sorter import EntryKind
from binlake.pump_service.pump.storage import PumpStorage
from binlake.rpc.limits import SparingLog
from binlake.rpc.request import HttpRequest, HttpResponse
from binlake.tso import MAX_TS
from binlake.wire.binlog_pb2 import Binlog, BinlogType, Commit, Prewrite, PrewriteValue, Rollback

log = structlog.get_logger()
sparing = SparingLog()

_SHOWN_BYTES = 64 << 10  # bytes of one field; formatting them takes some 60 times that memory
_PARSED_BYTES = 64 << 20  # bytes; of a larger binlog only the head is shown
_NAMED = {ord("\n"): r"\n", ord("\r"): r"\r", ord("\t"): r"\t", ord('"'): r"\"", ord("\\"): r"\\"}
_TYPES = {
    EntryKind.COMMIT: Commit,
    EntryKind.ROLLBACK: Rollback,
    EntryKind.FAKE: Rollback,
    EntryKind.PROVEN_ROLLBACK: Rollback,
}
_SCHEME = "Bearer "
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=UTF-8"
_OK, _BAD_PARAMETER, _NOT_FOUND, _OTHER = 200, 1, 2, 3
_ACTIONS = ("pause", "close")
_SHOWN = 40  # characters of an invalid parameter that are shown
Page = Callable[..., HttpResponse]


class Pages:
    """Answers HTTP requests about one pump.

    `gate` decides which callers may command; `ask(action)` makes the pump leave; `collect` collects garbage and returns
    what prevents it; `waiting` describes the P without a C or R.
    """

    def __init__(
        self,
        service: PumpService,
        storage: PumpStorage,
        members: Members,
        oracle: ClusterClock,
        *,
        ask: Callable[[str], None],
        verdict: PrewriteVerdict,
        waiting: Callable[[], list[dict[str, Any]]],
        collect: Callable[[], str],
        score: Callable[[], int],
        gate: Gate,
    ) -> None:
        self._service = service
        self._storage = storage
        self._members = members
        self._oracle = oracle
        self._ask = ask
        self._verdict = verdict
        self._waiting = waiting
        self._collect = collect
        self._score = score
        self._gate = gate
        self._probes = Probes(service.find_unhealthy, service.find_unready)
        self._routes: list[tuple[str, re.Pattern[str], Page, Needs]] = [
            ("GET", re.compile("/status"), self._answer_status, Needs.NOTHING),
            ("GET", re.compile("/drainers"), self._answer_drainers, Needs.NOTHING),
            ("PUT", re.compile("/state/([^/]+)/([^/]+)"), self._answer_state, Needs.OWN_SITE),
            ("GET", re.compile("/debug/binlog/([^/]+)"), self._answer_binlog, Needs.NOTHING),
            ("POST", re.compile("/debug/gc/trigger"), self._answer_gc, Needs.OWN_SITE),
            ("GET", re.compile("/metrics"), self._answer_metrics, Needs.NOTHING),
            ("GET", re.compile(f"{HEALTHZ}|{READYZ}"), self._answer_probe, Needs.NOTHING),
            ("GET", re.compile("/txn"), self._answer_transactions, Needs.NOTHING),
            ("PUT", re.compile("/txn/([^/]+)/commit/([^/]+)"), self._commit, Needs.PROOF),
            ("PUT", re.compile("/txn/([^/]+)/rollback"), self._rollback, Needs.PROOF),
            ("PUT", re.compile("/txn/([^/]+)/give-up/([^/]+)"), self._give_up, Needs.PROOF),
        ]

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """The answer to one request."""
        methods = set()
        for method, pattern, answer, needs in self._routes:
            match = pattern.fullmatch(request.path)
            if match and method == request.method:
                refusal = self._gate.find_reason_to_refuse(request, needs)
                return self._refuse(request, refusal) if refusal else answer(request, *match.groups())
            if match:
                methods.add(method)
        if methods:
            return HttpResponse(405, TEXT, b"")
        return HttpResponse(404, TEXT, b"404 page not found\n")

    @staticmethod
    def _refuse(request: HttpRequest, why: str) -> HttpResponse:
        sparing.warning("command_refused", path=request.path[:100], why=why)
        return HttpResponse(403, JSON, _build_envelope(why, _OTHER).body)

    def _answer_status(self, _: HttpRequest) -> HttpResponse:
        try:
            pumps = {pump.node_id: json.loads(pump.to_json()) for pump in self._members.list_pumps()}
            values: dict[str, Any] = {"status": pumps, "CommitTS": self._oracle.fetch_ts(), "Checkpoint": {}}
            values["ErrMsg"] = self._service.describe_problems()
        except BinlakeError as error:
            values = {"status": None, "CommitTS": 0, "Checkpoint": {}, "ErrMsg": str(error)}
        return _build_json_line(values)

    def _answer_drainers(self, _: HttpRequest) -> HttpResponse:
        try:
            return _build_json_line([json.loads(drainer.to_json()) for drainer in self._members.list_drainers()])
        except BinlakeError as error:
            return _build_envelope(str(error), _OTHER)

    def _answer_state(self, _: HttpRequest, node_id: str, action: str) -> HttpResponse:
        own_id, state = self._service.node_id, self._service.state
        if node_id != own_id and self._answers_for(node_id):
            return self._answer_replication(node_id, action)
        if node_id != own_id:
            return _build_envelope(f"invalide nodeID {node_id}, this pump's nodeID is {own_id}", _OTHER)
        if action not in _ACTIONS:
            return _build_envelope(f"invalide action {action}", _OTHER)
        if state is not State.ONLINE:
            return _build_envelope(f"this pump's state is {state}, apply {action} failed!", _OTHER)
        log.info("asked_to_leave", action=action, pump=own_id)
        self._ask(action)
        return _build_envelope(f"apply action {action} success!", _OK)

    def _answers_for(self, node_id: str) -> bool:
        """Whether `node_id` is a replication: a consumer without a process, whose address in the registry is ours."""
        try:
            own = self._members.find_pump(self._service.node_id)
            drainers = self._members.list_drainers()
        except BinlakeError:
            return False
        return own is not None and any(one.node_id == node_id and one.host == own.status.host for one in drainers)

    def _answer_replication(self, node_id: str, action: str) -> HttpResponse:
        """As a drainer would: the state that the action writes keeps plan from starting a window."""
        if action not in _ACTIONS:
            return _build_envelope(f"invalide action {action}", _OTHER)
        try:
            before = (
                self._members.pause_replication(node_id)
                if action == "pause"
                else self._members.set_drainer_state(node_id, OFFLINE)
            )
        except BinlakeError as error:
            return _build_envelope(f"apply {action} failed! {error}", _OTHER)
        log.info("replication_asked", action=action, drainer=node_id, before=before.state,
                 position=str(before.max_commit_ts))  # fmt: skip
        return _build_envelope(f"apply action {action} success!", _OK)

    def _answer_binlog(self, request: HttpRequest, text: str) -> HttpResponse:
        wants_json = request.query.get("format") == "json"
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            message = f"invalid parameter ts: {text[:_SHOWN]}"
            return _build_envelope(message, _BAD_PARAMETER) if wants_json else HttpResponse(200, TEXT, message.encode())
        try:
            pointer = self._storage.index.find_pointer(int(text)) if abs(int(text)) < 1 << 63 else None
            if pointer is None:
                raise Permanent("leveldb: not found")
            payload = self._storage.read(pointer)
        except BinlakeError as error:
            message = f"fail read binlog by ts: {text}: {error}"
            return _build_envelope(message, _NOT_FOUND) if wants_json else HttpResponse(200, TEXT, message.encode())
        if wants_json:
            return _build_envelope("", _OK, as_json(payload, self._storage))
        return HttpResponse(200, TEXT, as_text(payload).encode())

    def _answer_gc(self, _: HttpRequest) -> HttpResponse:
        problem = self._collect()
        text = f"trigger gc success\n{problem}\n" if problem else "trigger gc success\n"
        return HttpResponse(200, TEXT, text.encode())

    def _answer_metrics(self, _: HttpRequest) -> HttpResponse:
        body = self._service.metrics.render_page(self._storage, self._service.status_queries, self._score)
        return HttpResponse(200, METRICS_CONTENT_TYPE, body)

    def _answer_probe(self, request: HttpRequest) -> HttpResponse:
        answer = self._probes.answer(request.path)
        assert answer is not None
        status, text = answer
        return HttpResponse(status, TEXT, text.encode())

    def _answer_transactions(self, _: HttpRequest) -> HttpResponse:
        return _build_envelope("", _OK, self._waiting())

    def _commit(self, _: HttpRequest, start_ts: str, commit_ts: str) -> HttpResponse:
        return _answer_decision(self._verdict.decide, start_ts, commit_ts, f"is recorded as committed at {commit_ts}")

    def _rollback(self, _: HttpRequest, start_ts: str) -> HttpResponse:
        return _answer_decision(self._verdict.decide, start_ts, "0", "is recorded as rolled back")

    def _give_up(self, _: HttpRequest, start_ts: str, commit_ts: str) -> HttpResponse:
        outcome = f"is given up: pulls skip its commit at {commit_ts}"
        return _answer_decision(self._verdict.give_up, start_ts, commit_ts, outcome)


def _answer_decision(decide: Callable[[int, int], None], start_ts: str, commit_ts: str, outcome: str) -> HttpResponse:
    try:
        decide(_parse_ts(start_ts), _parse_ts(commit_ts))
    except ConfigError as error:
        return _build_envelope(str(error), _BAD_PARAMETER)
    except BinlakeError as error:
        return _build_envelope(str(error), _OTHER)
    return _build_envelope(f"transaction {start_ts} {outcome}", _OK)


def _parse_ts(text: str) -> int:
    if re.fullmatch("[0-9]{1,19}", text) and int(text) <= MAX_TS:
        return int(text)
    raise ConfigError("not a timestamp", where={"ts": text[:_SHOWN]})


def _build_json_line(value: Any) -> HttpResponse:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(200, TEXT, f"{text}\n".encode())


def _build_envelope(message: str, code: int, data: Any = None) -> HttpResponse:
    text = json.dumps({"message": message, "code": code, "data": data}, ensure_ascii=False, indent=2)
    return HttpResponse(200, JSON, f"{text}\n".encode())


class Needs(IntEnum):
    """What a page requires of its caller."""

    NOTHING = 0
    """The page changes nothing."""
    OWN_SITE = 1
    """The page acts, and the original has it, too."""
    PROOF = 2
    """The page acts, and only Binlake has it."""


class Gate:
    """`token_file`: holds the token; if it is missing, it is created with a random token. `strict`: the original's
    commands need proof, too. Raises ConfigError when the file can be neither read nor created."""

    def __init__(self, token_file: Path, *, strict: bool = False) -> None:
        self._file = token_file
        self._strict = strict
        try:
            if not token_file.exists():
                _create_token(token_file)
            self._read_token()
        except OSError as error:
            raise ConfigError(
                f"the token for commands cannot be saved: {error.strerror}", where={"admin-token-file": token_file}
            ) from None

    def find_reason_to_refuse(self, request: HttpRequest, needs: Needs) -> str:
        """Why `request` is refused; empty when it is served."""
        if needs is Needs.NOTHING:
            return ""
        if not _is_same_site(request.headers):
            return "refused: the request comes from a page of another site"
        if needs is Needs.OWN_SITE and not self._strict:
            return ""
        if request.certified or self._has_token(request.headers.get("authorization", "")):
            return ""
        return f"refused: pass a client certificate, or the token in {self._file} (--token-file)"

    def _has_token(self, authorization: str) -> bool:
        if not authorization.startswith(_SCHEME):
            return False
        token = self._read_token()
        return bool(token) and hmac.compare_digest(authorization.removeprefix(_SCHEME).encode(), token)

    def _read_token(self) -> bytes:
        # Read at each request, so a new token takes effect without a restart.
        return self._file.read_bytes().strip()


def _create_token(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(32)}\n")


def _is_same_site(headers: Mapping[str, str]) -> bool:
    """False when a browser sent this from a page of another site; other callers do not send these headers."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def as_text(payload: bytes) -> str:
    """The fields that are set, in the original's protobuf text form. A long field is cut and shown with its size."""
    binlog = _parse_binlog(payload)
    words = [f"tp:{BinlogType.Name(binlog.tp)}"]
    for field, value in binlog.ListFields():
        if field.name == "tp":
            continue
        if value in (0, b""):
            continue  # Go omits it
        if isinstance(value, int):
            words.append(f"{field.name}:{value}")
        else:
            more = f"...({len(value)} bytes)" if len(value) > _SHOWN_BYTES else ""
            words.append(f'{field.name}:"{_quote(value[:_SHOWN_BYTES])}"{more}')
    return " ".join(words) + " \n"


def as_json(payload: bytes, storage: PumpStorage) -> dict[str, Any]:
    """Type, timestamps as decimal strings, and the tables with their row counts; for a C, those of its P."""
    binlog = _parse_binlog(payload)
    body = _read_prewrite(binlog, storage) if binlog.tp == Commit else binlog
    return {
        "type": "Fake" if binlog.start_ts == binlog.commit_ts and binlog.start_ts else BinlogType.Name(binlog.tp),
        "start_ts": str(binlog.start_ts),
        "commit_ts": str(binlog.commit_ts),
        "bytes": len(payload),
        "ddl_job_id": body.ddl_job_id,
        "ddl_query": body.ddl_query.decode(errors="replace"),
        **_count_rows(body.prewrite_value),
    }


def _parse_binlog(payload: bytes) -> Binlog:
    if len(payload) <= _PARSED_BYTES:
        return Binlog.FromString(payload)
    head = parse_head(payload)
    return Binlog(tp=_TYPES.get(head.kind, Prewrite), start_ts=head.start_ts, commit_ts=head.commit_ts)


def _read_prewrite(commit: Binlog, storage: PumpStorage) -> Binlog:
    pointer = storage.index.find_pointer(commit.start_ts)
    return commit if pointer is None else _parse_binlog(storage.read(pointer))


def _count_rows(value: bytes) -> dict[str, Any]:
    try:
        mutations = PrewriteValue.FromString(value)
    except DecodeError:
        return {"schema_version": 0, "tables": [], "note": "its prewrite value cannot be read"}
    tables = [
        {
            "table_id": table.table_id,
            "inserted": len(table.inserted_rows),
            "updated": len(table.updated_rows),
            "deleted": len(table.deleted_rows),
        }
        for table in mutations.mutations
    ]
    return {"schema_version": mutations.schema_version, "tables": tables}


def _quote(value: bytes) -> str:
    return "".join(_NAMED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in value)
