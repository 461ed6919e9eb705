"""`binlake feeder status` ends with 0 only if every source is read."""

from __future__ import annotations

from typing import Any

import pytest

from binlake.pump_service.feeder import command
from binlake.pump_service.feeder.settings import FeederFile

READING: dict[str, Any] = {"source": "s1", "state": "reading", "heard": True, "heard_s": 0.1, "trouble": ""}
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("read", {}, 0),
    ("loading", {"state": "loading", "heard": False}, 0),
    ("dead", {"heard": False, "trouble": "the server ended the connection"}, 1),
    ("silent", {"heard": False}, 1),
    ("load waits", {"state": "loading", "heard": False, "trouble": "the server cannot be reached"}, 1),
    ("pumps refuse", {"trouble": "no pump is online"}, 1),
    ("failed", {"state": "failed", "heard": False, "trouble": "the log is purged"}, 1),
    ("no feeder", {"state": "not running", "heard": None}, 1),
]


@pytest.mark.parametrize(("case", "source", "status"), CASES, ids=[case for case, *_ in CASES])
@pytest.mark.parametrize("output", ["text", "json"])
def test_status_is_zero_only_if_every_source_is_read(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
    source: dict[str, Any],
    status: int,
    output: str,
) -> None:
    answer = {"name": "f", "sources": [READING, {**READING, "source": case, **source}], "replaced_texts": {"d.t": 1234}}
    monkeypatch.setattr(command, "_ask_feeder", lambda _settings: answer)
    settings = FeederFile.model_construct()
    assert command.show_status(settings, output) == status
    told = capsys.readouterr().out
    assert case in told
    replaced = "replaced texts of d.t (invalid-text) since the start: 1,234" if output == "text" else '{"d.t": 1234}'
    assert replaced in told
