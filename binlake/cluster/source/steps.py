"""Steps of DDL jobs that are not in the history yet, read from TiDB's meta keys and its loaded definitions.

A DDL job runs in steps, and is in the history only after it has ended. Each step takes one schema version. The key
`SchemaVersionKey` has the newest version. `Diff:VERSION` is written in the step's transaction, so its write record has
the step's commit_ts. Both are read by `/mvcc/hex/KEY`; `/db-table/ID` returns a table's definition (tidb-binlog 10.3).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from binlake.cluster.source.status import find_mvcc_info
from binlake.errors import SourceUnavailable, WireError

_GROUP = 8
_STRING = ord("s").to_bytes(8, "big")
_PUT = 0


@dataclass(frozen=True)
class DdlStep:
    """One step of a DDL job: schema version, commit_ts, kind (TiDB's number; that of the clause) and table id.

    If the step's transaction may still be running, `commit_ts` is its start_ts, and `action` is 0: any kind.
    """

    version: int
    commit_ts: int
    action: int
    table_id: int


@dataclass(frozen=True)
class ShownTable:
    """A table as a server sees it: `version`: its loaded schema version; `info`: TableInfo (None: no such table)."""

    version: int
    info: Mapping[str, Any] | None


def encode_meta_key(name: str) -> bytes:
    """The key of a string in TiDB's meta data: the prefix m, the name in groups of eight, its kind."""
    raw = name.encode()
    groups = [raw[at : at + _GROUP] for at in range(0, len(raw) + 1, _GROUP)]
    return b"m" + b"".join(part.ljust(_GROUP, b"\0") + bytes([255 - _GROUP + len(part)]) for part in groups) + _STRING


VERSION_KEY = encode_meta_key("SchemaVersionKey")


def encode_step_key(version: int) -> bytes:
    """The key with the changes of a schema version."""
    return encode_meta_key(f"Diff:{version}")


def parse_newest_version(body: str) -> int | None:
    """The newest schema version in the answer for `VERSION_KEY`; None if the source has none (it is not a TiDB).

    If the next version is being written, that one is returned. Raises SourceUnavailable, WireError.
    """
    info = _parse_record(body)
    value = _find_value(info)
    if value is None and not info.get("lock"):
        return None
    return int(value or b"0") + bool(info.get("lock"))


def parse_step(version: int, body: str) -> DdlStep | None:
    """The step of `version` in the answer for its key; None if it does not exist, as its transaction never committed.

    Raises SourceUnavailable, WireError.
    """
    info = _parse_record(body)
    if lock := info.get("lock"):
        return DdlStep(version, int(lock["start_ts"]), 0, 0)
    value = _find_value(info)
    if value is None:
        return None
    diff = json.loads(value)
    return DdlStep(version, _find_newest_write(info)["commit_ts"], int(diff["type"]), int(diff.get("table_id") or 0))


def parse_shown_table(body: str | None) -> ShownTable:
    """The definition in an answer to `/db-table/ID`; None if the server knows no such table. Raises WireError."""
    if body is None:
        return ShownTable(0, None)
    try:
        answer = json.loads(body)
        return ShownTable(int(answer["schema_version"]), answer["table_info"])
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"the answer to /db-table is not a definition: {error!r}") from error


def _parse_record(body: str) -> Mapping[str, Any]:
    try:
        info = find_mvcc_info(json.loads(body))
    except (ValueError, TypeError, AttributeError) as error:
        raise WireError(f"the answer to /mvcc/hex is not a record of a key: {error!r}") from error
    if info is None:
        raise SourceUnavailable(
            "the source cannot read its own schema version",
            where={"answer": body[:200]},
            hint="try again, or set [source.sql] to read jobs by SQL",
        )
    return info


def _find_newest_write(info: Mapping[str, Any]) -> Mapping[str, Any]:
    puts = [write for write in info.get("writes") or () if int(write.get("type") or 0) == _PUT]
    return max(puts, key=lambda write: int(write["commit_ts"]), default={})


def _find_value(info: Mapping[str, Any]) -> bytes | None:
    write = _find_newest_write(info)
    if not write:
        return None
    long = (one.get("value") for one in info.get("values") or () if one["start_ts"] == write["start_ts"])
    text = write.get("short_value") or next(long, None)
    if not text:
        raise WireError(
            "the source reports that a key was written, but not its value", where={"start_ts": write["start_ts"]}
        )
    return base64.b64decode(text)
