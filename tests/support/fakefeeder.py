"""A feeder's status port whose page says what a test wants."""

from __future__ import annotations

import json
from typing import Any

from binlake.pump_service.statusport import StatusServer


class FakeFeeder:
    """Serves one source at `/feeder`; `source` may change at any time."""

    def __init__(self) -> None:
        self.source: dict[str, Any] = {
            "source": "shard-1", "state": "reading", "heard": True, "heard_s": 0.5, "lag_s": 0.0,
            "server": "db1:3306", "gtids": "0-1-42", "last_commit_ts": "0", "trouble": "",
        }  # fmt: skip
        pages = {"/feeder": lambda: (json.dumps({"sources": [self.source]}), "application/json")}
        self.port = StatusServer({"version": "x"}, self, self, lambda: 1, pages=pages)

    def answer(self, _key: bytes, _now: int) -> dict[str, Any]:
        """No transaction is known."""
        return {}

    def list_finished_jobs(self, _now: int, _start_job_id: int = 0, _limit: int = 0) -> list[dict[str, Any]]:
        """No DDL has run."""
        return []
