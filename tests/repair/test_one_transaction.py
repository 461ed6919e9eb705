"""One transaction is repaired by its commit_ts and recorded; the JSON of every command is checked on this lake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.exact import find_rounded_numbers
from support.shop import Shop
from support.tinylake import replication_toml, set_checkpoint
from test_backfill import find_wrong_rows

from binlake.cli import run as main
from binlake.lake.windowlog import WindowLog
from binlake_airflow.pages.history import build_notices_view

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


def test_transaction_is_repaired_by_its_commit_ts_and_shown_on_the_page(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # U-12, R-46
    w, old = shop.workload, [dict(row) for row in shop.rows("item")[:3]]
    w.begin().update("shop", "item", old[0], n=501).commit()
    ts = w.begin().update("shop", "item", old[1], n=502).delete("shop", "item", **old[2]).commit()
    shop.lake.land()
    # The target has none of its rows.
    set_checkpoint(shop.server, shop.lake.hi)
    left, *mended = (f'["{row["id"]}"]' for row in old)
    assert find_wrong_rows(shop) == {left, *mended}
    file = tmp_path / "demo.toml"
    file.write_text(replication_toml(shop.lake.replication))
    arguments = ["--replication", str(file)]
    shown = run_json(capsys, "backfill", "repair", *arguments, "--commit-ts", str(ts))
    assert [(entry["lo"], entry["hi"], entry["detail"]["keys"]) for entry in shown] == [(str(ts - 1), str(ts), 2)]
    assert find_wrong_rows(shop) == {left}
    (notice,) = build_notices_view(WindowLog(shop.lake.paths))
    assert (notice["what"], notice["window"]) == ("backfill", f"{ts - 1}-{ts}")
    assert notice["detail"]["different"] == 2
    for words in (["--commit-ts", str(ts), "--to", str(ts)], ["--from", "0"]):
        assert main(["backfill", "repair", *arguments, *words]) == 1
    # Whatever a command prints for this lake and target contains no number that a browser would round.
    id_ = str(old[1]["id"])
    for command in (["audit", "row", "shop.item", id_], ["audit", "table", "shop.item", "--at", str(ts)],
                    ["audit", "sql", "--table", "shop.item"], ["window", "list"], ["checkpoint", "show"],
                    ["verify"], ["recover"], ["preflight"]):  # fmt: skip
        assert find_rounded_numbers(run_json(capsys, *command, *arguments)) == []


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    main([*words, "--output", "json"])
    text = capsys.readouterr().out
    assert text.strip()
    return json.loads(text)
