"""`make pictures`: takes the pictures of docs/operate/pages.md with Chromium, from Airflow and a sample lake."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Literal

import httpx

from binlake.lake.paths import LakePaths
from deploy.local.airflow import Airflow
from deploy.local.chromium import Chromium, Page
from deploy.local.etcd import Etcd
from deploy.local.sample_lake import BASE, S, build_sample, register_cluster

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
NAME = "shop"
_WIDTH = 960


def main() -> int:
    """Take all pictures."""
    with tempfile.TemporaryDirectory(prefix="binlake-pictures-") as scratch:
        folder = Path(scratch)
        build_sample(LakePaths(str(folder / "lake" / NAME)))
        with Etcd() as etcd:
            _write_replication(folder, etcd.url)
            server = Airflow(folder / "airflow", {"BINLAKE_REPLICATIONS": str(folder)}, only=("api-server",))
            with server as airflow, Chromium(folder / "chromium") as chromium, chromium.open_page() as page:
                _log_in(page, airflow)
                _take(page, airflow.url, etcd.url)
    return 0


def _write_replication(folder: Path, pd: str) -> None:
    sections = {"source": {"pd-urls": pd}, "lake": {"path": str(folder / "lake")}, "target": {"db-type": "mariadb"}}
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())
        for name, section in sections.items()
    )
    (folder / f"{NAME}.toml").write_text(f'name = "{NAME}"\n{text}', encoding="utf-8")


def _log_in(page: Page, airflow: Airflow) -> None:
    login = {"username": airflow.user, "password": airflow.password}
    answer = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=60).raise_for_status()
    page.set_cookie(airflow.url, "_token", answer.json()["access_token"])


def _take(page: Page, url: str, pd: str) -> None:
    base = f"{url}/binlake/dags/{NAME}"
    # Address, height and colour scheme by name.
    pages: dict[str, tuple[str, int, Literal["light", "dark"]]] = {
        "overview": (f"{url}/binlake/", 260, "dark"),
        "replication": (base, 1120, "light"),
        "row": (f"{base}/row?table=shop.item&key=4", 700, "light"),
        "transaction": (f"{base}/transaction?ts={BASE + 12 * S + 1}", 820, "dark"),
        "table": (f"{base}/table?table=shop.item&at={BASE + 30 * S}", 560, "light"),
    }
    for name, (address, height, scheme) in pages.items():
        # Write a new heartbeat, so that the pump is not shown as silent.
        register_cluster(pd)
        page.set_size(1180 if name == "overview" else _WIDTH, height)
        page.set_scheme(scheme)
        page.goto(address)
        page.write_picture(FOLDER / f"{name}.png")
        print(f"{FOLDER / name}.png: {os.path.getsize(FOLDER / f'{name}.png'):,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
