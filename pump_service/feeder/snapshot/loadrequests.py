"""Requests to load tables of a source again: files in the feeder's folder, which commands write and the feeder takes.

One file is one request, so that nothing needs a lock; it may be written while a feeder runs or not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from binlake.base.localfiles import replace_file
from binlake.mysqlbinlog.tablerows.link import Name

_FOLDER = "table-loads"


@dataclass(frozen=True)
class LoadRequest:
    """`tables` of `source`, in `file`."""

    file: Path
    source: str
    tables: tuple[Name, ...]


def add_request(folder: Path, source: str, tables: Collection[Name]) -> None:
    """Ask the feeder whose data-dir is `folder` to load `tables`. Raises OSError."""
    requests = folder / _FOLDER
    requests.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"source": source, "tables": sorted(tables)}).encode()
    replace_file(requests / f"{uuid.uuid4()}.json", [body])


def list_requests(folder: Path, source: str) -> list[LoadRequest]:
    """The requests for `source`, which stay until `LoadRequest.file` is deleted. Raises OSError."""
    try:
        files = sorted((folder / _FOLDER).glob("*.json"))
        bodies = [(file, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    except FileNotFoundError:
        return []
    requests = [
        LoadRequest(file, body["source"], tuple((db, table) for db, table in body["tables"])) for file, body in bodies
    ]
    return [request for request in requests if request.source == source]
