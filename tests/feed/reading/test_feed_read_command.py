"""`binlake feed read` in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.feedmessages import Change, window_of

from binlake.config.sinkuri import StorageSection
from binlake.feed.files.publisher import FilePublisher

pytestmark = pytest.mark.process

COUNT = 3000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a feed in Canal-JSON, larger than any pipe buffer."""
    message = {"database": "shop", "table": "item", "type": "INSERT", "data": [{"id": "1", "name": "x" * 100}]}
    changes = [Change(1, json.dumps(message)) for _ in range(COUNT)]
    with FilePublisher(StorageSection("file", str(tmp_path / "files")), "canal-json", "demo.files") as publisher:
        publisher.publish_window(*window_of(0, 2, changes))
    return tmp_path / "files"


def test_reader_of_the_output_may_stop_early(folder: Path) -> None:
    command = [str(Path(sys.executable).parent / "binlake"), "feed", "read", f"file://{folder}?protocol=canal-json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert "shop.item" in reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == ""
        assert reading.wait(60) == 0
    whole = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert len(whole.splitlines()) == COUNT
