"""Differences of rows: missing on the target, extra there, or different in some columns; and what fixes them.

Rows are compared by the only definition of equality (docs/understand/equality.md). Rows with a key are matched by it,
whatever their chunk; rows without a key are counted.

Fixes delete wrong or extra rows, then insert expected rows. As in invariant 6, rows with other keys are right, so this
leads to the expected table even if unique values move between rows. In a file, which an operator can read and run and
`binlake repair` runs statement by statement, a comment before each batch gives the lengths of its statements in bytes,
because values may contain any characters, including line ends and `;`. The first line names the checkpoint for which
the file was made; the last line shows that the file is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from binlake.changes.net import encode_row_key
from binlake.common.redaction import redact_key
from binlake.common.sql import Dialect
from binlake.errors import ConfigError
from binlake.repair.chunks import build_fold
from binlake.rows.schema import TableDef
from binlake.statements import (
    BatchLimits,
    Phase,
    StatementBatch,
    TableStatements,
    build_images_from_rows,
    compute_statement_digest,
)
from binlake.target.session.session import SQL_MODE

Row = Mapping[str, str | None]
"""Column name -> canonical text."""

Kind = Literal["missing", "extra", "different"]
_SHOWN = 60
_HEAD, _BATCH, _END = "-- binlake fix ", "-- batch ", "-- end "
_SETTINGS = (
    f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0;\n"
    "SET NAMES utf8mb4 COLLATE utf8mb4_bin;\n"
    "START TRANSACTION;\n"
)
_DONE = "COMMIT;\n"


@dataclass(frozen=True)
class Difference:
    """A difference at one key (JSON array of its texts) of `db`.`table`: the expected row and the one found.

    `columns`: the differing ones; `copies`: how many equal rows of a table without a key are missing or extra.
    """

    db: str
    table: str
    key: str
    kind: Kind
    columns: tuple[str, ...]
    expected: Row | None
    found: Row | None
    copies: int = 1

    def __str__(self) -> str:
        subject = f"{self.db}.{self.table} {self.key}"
        if self.kind != "different" or self.expected is None or self.found is None:
            count = f" ({self.copies} rows)" if self.copies > 1 else ""
            return f"{subject}: {'missing' if self.kind == 'missing' else 'only on the target'}{count}"
        values = (f"{c}: {_shorten(self.found[c])} instead of {_shorten(self.expected[c])}" for c in self.columns)
        return f"{subject}: {', '.join(values)}"

    def format_without_values(self) -> str:
        """The difference as text for a log."""
        subject, columns = f"{self.db}.{self.table} {redact_key(self.key)}", ", ".join(self.columns)
        what = {"missing": "missing", "different": f"differs in {columns}"}.get(self.kind, "only on the target")
        return f"{subject}: {what}" + (f" ({self.copies} rows)" if self.copies > 1 else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the rows' values are in the fix file."""
        return {"db": self.db, "table": self.table, "key": self.key, "kind": self.kind,
                "columns": list(self.columns), "copies": self.copies}  # fmt: skip


@dataclass
class RowsOfTable:
    """Rows of both sides that may differ; `list_differences` finds those that do."""

    table: TableDef
    expected: list[Row] = field(default_factory=list)
    found: list[Row] = field(default_factory=list)

    def list_differences(self) -> list[Difference]:
        """All differences, sorted by key."""
        keyed = self.table.find_identity().kind != "row"
        return sorted(
            self._compare_by_key() if keyed else self._compare_by_count(),
            key=lambda difference: (difference.key, difference.kind),
        )

    def _compare_by_key(self) -> Iterator[Difference]:
        expected, actual = self._group_by_key(self.expected), self._group_by_key(self.found)
        for key in expected.keys() | actual.keys():
            mine, theirs = expected.get(key, []), actual.get(key, [])
            if not theirs:
                yield self._build_difference(key, "missing", (), mine[0], None)
            elif not mine:
                yield self._build_difference(key, "extra", (), None, theirs[0], len(theirs))
            elif columns := self._find_differing_columns(mine[0], theirs):
                yield self._build_difference(key, "different", columns, mine[0], theirs[0])

    def _find_differing_columns(self, mine: Row, theirs: Sequence[Row]) -> tuple[str, ...]:
        return tuple(name for name, fold in self._folds if any(fold(row[name]) != fold(mine[name]) for row in theirs))

    def _compare_by_count(self) -> Iterator[Difference]:
        folds = self._folds
        counts: Counter[tuple[str | None, ...]] = Counter()
        images: dict[tuple[str | None, ...], Row] = {}
        for rows, step in ((self.found, -1), (self.expected, 1)):
            for row in rows:
                value = tuple(fold(row[name]) for name, fold in folds)
                counts[value] += step
                # An extra row is deleted with the target's values; a missing row is written with the expected ones.
                images[value] = row if step > 0 else images.get(value, row)
        actual_rows = {tuple(fold(row[name]) for name, fold in folds): row for row in self.found}
        for value, count in counts.items():
            key = encode_row_key(images[value], self.table.find_identity().columns)
            if count > 0:
                yield self._build_difference(key, "missing", (), images[value], None, count)
            elif count < 0:
                yield self._build_difference(key, "extra", (), None, actual_rows[value], -count)

    @cached_property
    def _folds(self) -> list[tuple[str, Callable[[str | None], str | None]]]:
        return [(column.name, build_fold(column)) for column in self.table.row_columns]

    def _group_by_key(self, rows: Iterable[Row]) -> dict[str, list[Row]]:
        by_key: dict[str, list[Row]] = {}
        for row in rows:
            by_key.setdefault(encode_row_key(row, self.table.find_identity().columns), []).append(row)
        return by_key

    def _build_difference(
        self, key: str, kind: Kind, columns: tuple[str, ...], expected: Row | None, found: Row | None, copies: int = 1
    ) -> Difference:
        return Difference(self.table.db, self.table.name, key, kind, columns, expected, found, copies)


def _shorten(value: str | None) -> str:
    if value is None:
        return "NULL"
    return repr(value if len(value) <= _SHOWN else f"{value[: _SHOWN - 3]}...")


def build_fix_batches(
    tables: Iterable[TableDef], differences: Sequence[Difference], dialect: Dialect, limits: BatchLimits
) -> list[StatementBatch]:
    """The batches that remove `differences`, all deletes first."""
    batches: list[StatementBatch] = []
    for table in tables:
        own = [difference for difference in differences if (difference.db, difference.table) == (table.db, table.name)]
        render = TableStatements(table, 0, dialect=dialect, limits=limits, first_batch=len(batches))
        batches += (
            _render_keyless(table, render, own)
            if table.find_identity().kind == "row"
            else _render_keyed(table, render, own)
        )
    return sorted(batches, key=lambda batch: (batch.phase, batch.batch))


def _render_keyed(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [difference.found for difference in own if difference.found is not None]
    if gone:
        # The rows are locked since they were read, so each must be there.
        yield from render.render_deletes(build_images_from_rows(gone, table.find_identity().columns), exact=True)
    put = [difference.expected for difference in own if difference.expected is not None]
    if put:
        # Never use REPLACE: a row with another key but the same unique value must cause an error, not be deleted.
        yield from render.render_inserts(_build_images(table, put), [1] * len(put))


def _render_keyless(table: TableDef, render: TableStatements, own: Sequence[Difference]) -> Iterator[StatementBatch]:
    gone = [(difference.found, difference.copies) for difference in own if difference.found is not None]
    if gone:
        yield from render.render_image_deletes(
            _build_images(table, [row for row, _ in gone]), [copies for _, copies in gone]
        )
    put = [(difference.expected, difference.copies) for difference in own if difference.expected is not None]
    if put:
        yield from render.render_inserts(_build_images(table, [row for row, _ in put]), [copies for _, copies in put])


def _build_images(table: TableDef, rows: Sequence[Row]) -> dict[str, object]:
    return build_images_from_rows(rows, [column.name for column in table.row_columns])


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
