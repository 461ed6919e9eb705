"""Read the files of a capture as streams; every malformed byte or line is an error that names file and position."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from binlake.errors import ConfigError, WireError

Json = dict[str, Any]
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class StateAt:
    """The state that a consumer must show once everything up to `commit_ts` (inclusive) is applied.

    `step` says why it was recorded; `databases` and `tables` ([db, name, kind]) are None if no table list was recorded
    at this commit_ts; `contents` has the recorded tables as in the file (`table`, `columns`, `rows`, ...).
    """

    commit_ts: int
    step: str
    databases: list[str] | None
    tables: list[tuple[str, str, str]] | None
    contents: tuple[Json, ...]


class Capture:
    """A capture folder. Raises ConfigError if `path` contains no capture, WireError for malformed files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self._find("binlogs.bin") is None:
            raise ConfigError(
                f"{self.path} does not contain a capture", hint="a capture folder has binlogs.bin or binlogs.bin.gz"
            )

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def meta(self) -> Json:
        """The content of meta.json."""
        with self._open("meta.json") as stream:
            return self._parse_object(stream.read(), "meta.json", 1)

    def has(self, name: str) -> bool:
        """True if the file `name` (or name.gz) exists."""
        return self._find(name) is not None

    def read_binlogs(self) -> Iterator[bytes]:
        """Serialised Binlog messages in order of arrival, which is not commit order."""
        with self._open("binlogs.bin") as stream:
            offset = 0
            while head := stream.read(_LENGTH.size):
                size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
                payload = stream.read(size) if size >= 0 else b""
                if len(payload) != size:
                    raise self._build_malformed_error("binlogs.bin", "a record is cut short", offset=offset)
                yield payload
                offset += _LENGTH.size + size

    def read_jobs(self) -> Iterator[Json]:
        """DDL jobs by schema version, each as its JSON (see `read_job_texts` for the exact text)."""
        return self._read_lines("ddl_jobs.jsonl")

    def read_job_texts(self) -> Iterator[str]:
        """The exact JSON text of each DDL job, by schema version."""
        return (text for _, text in self._read_texts("ddl_jobs.jsonl"))

    def read_decoded(self) -> Iterator[Json]:
        """Row changes of committed transactions in commit_ts order, as TiDB's own codec decodes them."""
        return self._read_lines("decoded.jsonl")

    def read_states(self) -> Iterator[StateAt]:
        """The states that the source showed, by commit_ts."""
        return self._read_states("states.jsonl")

    def read_replayed_states(self) -> Iterator[StateAt]:
        """The states by the binlog where they differ from the source's; empty for captures without replayed.jsonl."""
        return self._read_states("replayed.jsonl") if self.has("replayed.jsonl") else iter(())

    def read_outcomes(self) -> Any:
        """The content of outcomes.json: the outcomes of unusual transactions; None for captures without it."""
        if not self.has("outcomes.json"):
            return None
        with self._open("outcomes.json") as stream:
            return self._parse(stream.read(), "outcomes.json", 1)

    def read_http_answers(self) -> Iterator[Json]:
        """Recorded answers of TiDB's status port, each {path, status, content_type, body}."""
        for path in sorted((self.path / "http").glob("*.json*")):
            name = f"http/{path.name.removesuffix('.gz')}"
            with self._open(name) as stream:
                yield self._parse_object(stream.read(), name, 1)

    def _read_states(self, name: str) -> Iterator[StateAt]:
        group: list[Json] = []
        for number, line in enumerate(self._read_lines(name), 1):
            if "commit_ts" not in line:
                raise self._build_malformed_error(name, "a state lacks commit_ts", line=number)
            if group and line["commit_ts"] != group[0]["commit_ts"]:
                yield _build_state(group)
                group = []
            group.append(line)
        if group:
            yield _build_state(group)

    def _read_lines(self, name: str) -> Iterator[Json]:
        return (self._parse_object(text, name, number) for number, text in self._read_texts(name))

    def _read_texts(self, name: str) -> Iterator[tuple[int, str]]:
        with self._open(name) as stream:
            for number, line in enumerate(stream, 1):
                try:
                    text = line.decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise self._build_malformed_error(name, f"not UTF-8: {error.reason}", line=number) from error
                if text:
                    yield number, text

    def _parse_object(self, text: str | bytes, name: str, line: int) -> Json:
        value = self._parse(text, name, line)
        if not isinstance(value, dict):
            raise self._build_malformed_error(name, "not a JSON object", line=line)
        return value

    def _parse(self, text: str | bytes, name: str, line: int) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._build_malformed_error(name, f"not JSON: {error}", line=line) from error

    def _find(self, name: str) -> Path | None:
        return next((p for p in (self.path / name, self.path / f"{name}.gz") if p.is_file()), None)

    @contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        path = self._find(name)
        if path is None:
            raise ConfigError(f"{self.path / name} is missing", hint="the capture is not complete")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            try:
                yield cast(BinaryIO, stream)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self._build_malformed_error(name, f"the gzip file is damaged: {error}") from error

    def _build_malformed_error(self, name: str, what: str, **position: object) -> WireError:
        return WireError(f"malformed capture file: {what}", where={"file": self._find(name), **position})


def _build_state(group: list[Json]) -> StateAt:
    lists = [line for line in group if "databases" in line]
    return StateAt(
        commit_ts=int(group[0]["commit_ts"]),
        step=str(group[0].get("step", "")),
        databases=lists[0]["databases"] if lists else None,
        tables=[(t[0], t[1], t[2]) for t in lists[0]["tables"]] if lists else None,
        contents=tuple(line for line in group if "table" in line),
    )


def read_expected_states(capture: Capture) -> Iterator[StateAt]:
    """States by commit_ts. Rows come from `replayed.jsonl` if it has the table; everything else from `states.jsonl`.

    No consumer can show changes that TiDB did not write to the binlog (tidb-binlog 1.14, 1); verify finds them.
    """
    rows = {
        (state.commit_ts, table["table"]): table["rows_by_binlog"]
        for state in capture.read_replayed_states()
        for table in state.contents
    }
    for state in capture.read_states():
        yield replace(state, contents=tuple(_with_rows(table, rows, state.commit_ts) for table in state.contents))


def _with_rows(table: Json, rows: dict[tuple[int, str], list[object]], commit_ts: int) -> Json:
    replayed = rows.get((commit_ts, table["table"]))
    return table if replayed is None else {**table, "rows": replayed}
