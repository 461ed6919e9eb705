"""A file of fixes: SQL that an operator can read and run, and that `binlake repair` runs statement by statement.

Values may contain any characters, including line ends and `;`, so a comment before each batch gives the lengths of its
statements in bytes. The first line names the checkpoint for which the file was made; the last line shows that the file
is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from binlake.errors import ConfigError
from binlake.statements import Phase, StatementBatch, compute_statement_digest
from binlake.target.session.session import SQL_MODE

_HEAD, _BATCH, _END = "-- binlake fix ", "-- batch ", "-- end "
_SETTINGS = (
    f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0;\n"
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin;\n"
    "START TRANSACTION;\n"
)
_DONE = "COMMIT;\n"


@dataclass(frozen=True)
class FixFile:
    """Statements for the target of `replication` at checkpoint `commit_ts`, for which a fix makes the target right."""

    replication: str
    commit_ts: int
    batches: tuple[StatementBatch, ...]
    purpose: Literal["fix", "rollback"] = "fix"

    def write(self, path: Path) -> None:
        """Write the file; an existing one is replaced."""
        with path.open("wb") as file:
            for piece in self._render_pieces():
                file.write(piece.encode())

    def _render_pieces(self) -> Iterator[str]:
        rows = sum(batch.rows for batch in self.batches)
        head = {"replication": self.replication, "commit_ts": str(self.commit_ts), "rows": rows}
        head["purpose"] = self.purpose
        yield f"{_HEAD}{json.dumps(head)}\n{_SETTINGS}"
        for batch in self.batches:
            about = {key: value for key, value in asdict(batch).items() if key not in ("sql", "digest")}
            about["bytes"] = [len(sql.encode()) for sql in batch.sql]
            yield f"{_BATCH}{json.dumps(about)}\n"
            yield from (f"{sql};\n" for sql in batch.sql)
        yield _DONE
        yield f"{_END}{json.dumps({'batches': len(self.batches), 'sha256': self._compute_digest()})}\n"

    def _compute_digest(self) -> str:
        return hashlib.sha256("".join(batch.digest for batch in self.batches).encode()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> FixFile:
        """Read the file at `path`. Raises ConfigError if it is missing, cut off or changed by hand."""
        try:
            fixes, end = _parse(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise _build_unreadable_error(path, str(error)) from error
        if end != {"batches": len(fixes.batches), "sha256": fixes._compute_digest()}:
            raise _build_unreadable_error(path, "its statements were changed")
        return fixes


def _parse(data: bytes) -> tuple[FixFile, dict[str, Any]]:
    at = data.index(b"\n") + 1
    head = _parse_json(data[:at], _HEAD)
    at += len(_SETTINGS.encode())
    batches: list[StatementBatch] = []
    while True:
        stop = data.index(b"\n", at) + 1
        line, at = data[at:stop], stop
        if line == _DONE.encode():
            continue
        if line.startswith(_END.encode()):
            return FixFile(head["replication"], int(head["commit_ts"]), tuple(batches), head["purpose"]), _parse_json(
                line, _END
            )
        about = _parse_json(line, _BATCH)
        sql = []
        for size in about.pop("bytes"):
            sql.append(data[at : at + size].decode())
            at += size + len(";\n")
        batches.append(_build_batch(about, tuple(sql)))


def _build_batch(about: dict[str, Any], sql: Sequence[str]) -> StatementBatch:
    fields = {**about, "phase": Phase(about["phase"]), "sql": tuple(sql), "expect": tuple(about["expect"])}
    return StatementBatch(**fields, digest=compute_statement_digest(sql))


def _parse_json(line: bytes, mark: str) -> dict[str, Any]:
    text = line.decode()
    if not text.startswith(mark):
        raise ValueError(f"`{mark.strip()}` is missing")
    value: dict[str, Any] = json.loads(text.removeprefix(mark))
    return value


def _build_unreadable_error(path: Path, reason: str) -> ConfigError:
    hint = "verify again and use the file that it writes; statements that you edit must be run by hand"
    return ConfigError(f"the fix file cannot be used: {reason}", where={"file": path}, hint=hint)
