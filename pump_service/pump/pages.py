"""The pump's pages: the original's paths and answers (tidb-binlog 2.13), and a few of Binlake's.

As in the original, a page reports an error as HTTP 200 with its text, or with the envelope `{message, code, data}`.
Only unknown paths (404), methods (405), callers without permission (403, see gate.py) and probes (503) use the status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import structlog

from binlake.cluster.holding import OFFLINE
from binlake.errors import BinlakeError, ConfigError, Permanent
from binlake.pump_service.probes import HEALTHZ, READYZ, Probes
from binlake.pump_service.prometheus import CONTENT_TYPE
from binlake.pump_service.pump.dump import as_json, as_text
from binlake.pump_service.pump.gate import Gate, Needs
from binlake.pump_service.pump.membership import ClusterClock, Members
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.storage import PumpStorage
from binlake.pump_service.pump.verdict import PrewriteVerdict
from binlake.rpc.http import HttpRequest, HttpResponse
from binlake.rpc.sparinglog import SparingLog
from binlake.tso import MAX_TS

log = structlog.get_logger()
sparing = SparingLog()

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
        return HttpResponse(200, CONTENT_TYPE, body)

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
