"""A live source cluster for tests: the embedded placement driver, real pumps, and a small TiDB that writes to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.promptpumps import PromptPump, settle, start_pump
from support.workload import Workload

from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient
from binlake.config.model import Replication
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.statusport import StatusJobs
from binlake.wire import binlog_pb2 as pb


class LiveSource:
    """Use as a context manager; everything is in `folder` and is gone afterwards."""

    def __init__(self, folder: Path, pumps: int = 2) -> None:
        self.folder = folder
        self.driver = PlacementDriver(folder / "pd", cluster_id=6791641053252586769).start()
        self.pd = PdClient([self.driver.url])
        self._etcd = EtcdClient([self.driver.url])
        self.registry = NodeRegistry(self._etcd)
        self.pumps: dict[str, PromptPump] = {}
        for number in range(1, pumps + 1):
            self.start_pump(f"pump{number}")
        self.workload = Workload(clock=self.pd.fetch_ts, sink=self._write)
        self._client: PumpClient | None = None
        self._status = ThreadingHTTPServer(("127.0.0.1", 0), _status_handler(self.workload, self.pd))
        self._status.daemon_threads = True
        threading.Thread(target=self._status.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> LiveSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.vanish()

    def vanish(self) -> None:
        """Stop the whole source: nothing listens at any of its addresses any more."""
        self.reconnect()
        for pump in list(self.pumps):
            self.stop_pump(pump)
        self._status.shutdown()
        self._status.server_close()
        self.pd.close()
        self._etcd.close()
        self.driver.stop()

    def start_pump(self, name: str, folder: str | None = None) -> PumpServer:
        """Start (or restart) the pump `name` on its directory."""
        self.pumps[name] = start_pump(self.driver.url, self.folder / (folder or name), name)
        return self.pumps[name]

    def stop_pump(self, name: str, state: str = "paused") -> None:
        """Stop the pump and leave `state` in the registry."""
        self.pumps.pop(name).stop(state)  # type: ignore[arg-type]

    def reconnect(self) -> None:
        """Drop the pump client, so that the next write looks up the pumps that exist then."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def settle(self, ts: int | None = None) -> int:
        """Wait until every pump's registered watermark has passed `ts` (default: now); return that ts."""
        return settle(self.pumps.values(), self.registry, self.pd.fetch_ts() if ts is None else ts)

    def replication(self, keep: Sequence[str] = (), **more: Any) -> Replication:
        """A replication of this source into a lake in this folder; `keep`: tables whose rows are always written."""
        return Replication.model_validate({
            "name": "live",
            "initial-commit-ts": "0",
            "source": {"pd-urls": [self.driver.url], "status-url": self.status_url, "timeout-s": 5},
            "lake": {"path": str(self.folder / "a läke"), "keep": list(keep)},
            **more,
        })  # fmt: skip

    @property
    def status_url(self) -> str:
        """The URL of the status port."""
        return f"http://127.0.0.1:{self._status.server_address[1]}"

    def _write(self, binlog: pb.Binlog) -> None:
        if self._client is None:
            self._client = PumpClient(self.registry, self.driver.cluster_id)
        write: dict[int, Callable[[pb.Binlog], str]] = {
            pb.Prewrite: self._client.write_prewrite,
            pb.Commit: self._client.write_commit,
            pb.Rollback: self._client.write_rollback,
        }
        write[binlog.tp](binlog)


def _status_handler(workload: Workload, pd: PdClient) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: int(values[-1]) for name, values in parse_qs(parts.query).items()}
            if parts.path == "/ddl/history":
                finished = StatusJobs(workload.jobs).list_finished_jobs(
                    pd.fetch_ts(), query.get("start_job_id", 0), query.get("limit", 0)
                )
                body = json.dumps(finished)
            elif parts.path.startswith("/mvcc/"):
                body = json.dumps({"key": "", "value": {"info": {"writes": None, "lock": None}}})
            else:
                self.send_error(404)
                return
            data = body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: test output shows assertions only."""

    return Handler
