"""`make pictures`: takes the pictures of docs/operate/pages.md with Chromium, from Airflow and a sample lake."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Literal

import httpx

from binlake import tso
from binlake.cluster.placement import EtcdClient
from binlake.lake.control import ControlTable
from binlake.lake.controltables import WINDOW
from binlake.lake.paths import LakePaths
from binlake.window.manifest import WindowManifest
from deploy.local.airflow import Airflow
from deploy.local.chromium import BrowserPage, Chromium
from deploy.local.etcd import Etcd
from deploy.local.ports import HOST
from deploy.local.sample_lake import BASE, S, build_sample, register_cluster

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
NAME = "shop"
_WIDTH = 1180
_WINDOWS, _STEP_MS = 70, 6_000
_STAGES = (("land", "", 0.5), ("merge", "", 0.7), ("compact", "sql", 0.4), ("convert", "sql", 0.3),
           ("finalize", "sql", 1.4), ("mirror", "mirror", 0.9))  # fmt: skip


def main() -> int:
    """Take all pictures."""
    with tempfile.TemporaryDirectory(prefix="binlake-pictures-") as scratch:
        folder = Path(scratch)
        paths = LakePaths(str(folder / "lake" / NAME))
        build_sample(paths)
        _write_recent_windows(paths)
        with Etcd() as etcd:
            _write_replication(folder, etcd)
            server = Airflow(folder / "airflow", {"BINLAKE_REPLICATIONS": str(folder)}, only=("api-server",))
            with server as airflow, Chromium(folder / "chromium") as chromium, chromium.open_page() as page:
                _log_in(page, airflow)
                _take(page, airflow.url, etcd.url)
    return 0


def _write_recent_windows(paths: LakePaths) -> None:
    """Windows of the last minutes, so that the charts have something to show."""
    now_ms = time.time_ns() // 1_000_000
    ends = [BASE + 40 * S, *(tso.compose(now_ms - _STEP_MS * (_WINDOWS - number)) for number in range(_WINDOWS))]
    events = [
        event
        for number, (lo, hi) in enumerate(itertools.pairwise(ends))
        for event in _list_events(lo, hi, rows=int(400 + 350 * math.sin(number / 7)))
    ]
    events += [_build_disk_event(hi, number) for number, hi in enumerate(ends[1:])]
    ControlTable(paths.locate_table(WINDOW.name), WINDOW).append(events)


def _list_events(lo: int, hi: int, rows: int) -> list[dict[str, object]]:
    """What the stages of one window record; it takes longer if it has more rows."""
    at_ms, events = tso.extract_physical(hi) + 800, []
    manifest = WindowManifest(NAME, 1, lo, hi, "", (), rows, 0, 0, 220 * rows, 1, "").to_json()
    for stage, sink, seconds in _STAGES:
        took = seconds * (0.5 + rows / 800)
        at_ms += int(1000 * took)
        events.append({
            "lo": lo, "hi": hi, "stage": stage, "sink": sink, "state": "done", "rows": rows, "seconds": took,
            "run_id": "scheduled__2026-11-20T10:04:00+00:00", "at_ms": at_ms, "blocked_by": "",
            "detail": json.dumps({"cpu_seconds": 0.6 * took} | ({"hottest": _count_changes(rows)} if stage == "compact"
                                 else {})),
            "manifest": manifest if stage == "land" else "",
        })  # fmt: skip
    return events


def _build_disk_event(hi: int, number: int) -> dict[str, object]:
    """The disks' readings with the window `number`: the pumps delete what has landed, the lake grows."""
    stored = {
        "lake": (40 + number) << 20,
        "pump-1": (80 + 5 * (number % 24)) << 20,
        "pump-2": (60 + 4 * (number % 30)) << 20,
    }
    disks = [{"place": place, "stored": size, "free": 61 << 30, "size": 80 << 30} for place, size in stored.items()]
    return {"lo": hi, "hi": hi, "stage": "disk", "sink": "", "state": "done", "rows": 0, "seconds": 0.0, "run_id": "",
            "at_ms": tso.extract_physical(hi), "blocked_by": "", "detail": json.dumps({"disks": disks}), "manifest": "",
            }  # fmt: skip


def _count_changes(rows: int) -> list[tuple[str, int]]:
    """As compact records them."""
    return [("shop.item", rows * 5 // 8), ("shop.orders", rows // 4), ("shop.log", rows // 9)]


def _write_replication(folder: Path, etcd: Etcd) -> None:
    sections: dict[str, dict[str, object]] = {
        "source": {"pd-urls": etcd.url},
        "lake": {"path": str(folder / "lake")},
        # The page only looks whether something listens there.
        "target": {"db-type": "mariadb", "host": HOST, "port": etcd.port},
        "mirror": {"enabled": True},
    }
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
    (folder / f"{NAME}.toml").write_text(f'name = "{NAME}"\n{text}', encoding="utf-8")


def _announce_tidb(pd: str) -> None:
    """As a TiDB server does in PD: so its lag is known, although its status port does not answer."""
    with closing(EtcdClient([pd])) as client:
        client.put(b"/topology/tidb/127.0.0.1:4000/ttl", str(time.time_ns()).encode())


def _log_in(page: BrowserPage, airflow: Airflow) -> None:
    login = {"username": airflow.user, "password": airflow.password}
    answer = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=60).raise_for_status()
    page.set_cookie(airflow.url, "_token", answer.json()["access_token"])


def _take(page: BrowserPage, url: str, pd: str) -> None:
    base = f"{url}/binlake/dags/{NAME}"
    # Address, width, height and colour scheme by name.
    pages: dict[str, tuple[str, int, int, Literal["light", "dark"]]] = {
        "overview": (f"{url}/binlake/", _WIDTH, 350, "dark"),
        "replication": (base, _WIDTH, 1300, "light"),
        "replication-dark": (base, _WIDTH, 1300, "dark"),
        "replication-narrow": (base, 390, 1100, "light"),
        "tables": (f"{base}/tables?q=p.i", _WIDTH, 330, "light"),
        "row": (f"{base}/row?table=shop.item&key=4", _WIDTH, 580, "light"),
        "transaction": (f"{base}/transaction?ts={BASE + 12 * S + 1}", _WIDTH, 820, "dark"),
        "diff": (f"{base}/diff?table=shop.item&from={BASE + 10 * S}&to={BASE + 40 * S}", _WIDTH, 560, "light"),
        "actions": (f"{base}/act", _WIDTH, 900, "light"),
        "act": (f"{base}/act/rollback?review=1&commit_ts={BASE + 12 * S + 1}", _WIDTH, 420, "light"),
        "table": (f"{base}/table?table=shop.item&at={BASE + 30 * S}", _WIDTH, 560, "light"),
    }
    for name, (address, width, height, scheme) in pages.items():
        # Write a new heartbeat, so that the pump is not shown as silent.
        register_cluster(pd)
        _announce_tidb(pd)
        page.set_size(width, height)
        page.set_scheme(scheme)
        page.goto(address)
        page.write_picture(FOLDER / f"{name}.png")
        print(f"{FOLDER / name}.png: {os.path.getsize(FOLDER / f'{name}.png'):,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
