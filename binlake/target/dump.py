"""A dump as the statements of one window (0, B]: a segment per definition, and all rows in the last segment.

Rule: the same dump and rules give the same batches. So a killed load continues from the ledger, and another dump in its
place is refused.

A data file is split into its INSERT statements: the bytes between two `;` outside strings, whose rows are the groups in
parentheses after VALUES. Strings and comments are skipped whole, without parsing. Session settings in a file are either
followed or refused, never ignored.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from binlake.common.redaction import redact_sql
from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl, put_target_names, render_bytewise
from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import (
    DumpFolder,
    Name,
    build_damaged_file_error,
    open_dump_file,
    read_dump_statements,
)
from binlake.rules import Rules
from binlake.statements.batch import UNCHECKED, Phase, StatementBatch, compute_statement_digest
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.statements.render import render_lenient
from binlake.target.segments import SegmentPlan

_BLOCK = 1 << 20
# `(?>X*)`, not `X*+`: Python up to 3.11.4 matches too little where a repeated group may backtrack (gh-106052).
_STRINGS = rb"""'[^'\\]*+(?>(?:(?:\\[0nrZ'"\\]|'')[^'\\]*+)*)'|"[^"\\]*+(?>(?:(?:\\[0nrZ'"\\]|"")[^"\\]*+)*)\""""
_PIECE = rb"""[^'"`;()/-]++|-(?!-)|/(?!\*)|`(?>(?:[^`]++|``)*)`|""" + _STRINGS
_PLAIN = re.compile(rb"(?>(?:\)|" + _PIECE + rb")+)", re.S)
"""Text that neither ends a statement nor begins a row. A string that continues in the next block does not match."""
_NOTE = rb"/\*.*?\*/|--(?=[ \t\r\n])[^\n]*\n|--(?![ \t\r\n])"
_COMMENT = re.compile(_NOTE, re.S)
_INSIDE = _PIECE + rb"|" + _NOTE
_ROW = re.compile(rb"\((?>(?:%b|\((?>(?:%b|\((?>(?:%b)*)\))*)\))*)\)" % (_INSIDE, _INSIDE, _INSIDE), re.S)
"""A row or a list of columns in parentheses, which may contain function calls (CONVERT of mydumper)."""
_ODD_ESCAPE = re.compile(
    rb"(?>(?:[();]|" + _PIECE + rb"|" + _NOTE + rb""")*)"""
    rb"""(?:'(?>(?:[^'\\]|\\[0nrZ'"\\]|'')*)|"(?>(?:[^"\\]|\\[0nrZ'"\\]|"")*))"""
    rb"""\\[^0nrZ'"\\]""",
    re.S,
)
"""A string with a backslash that begins no known escape: such a file uses backslashes as ordinary characters."""
_LEADING = re.compile(rb"(?:\s+|/\*.*?\*/|--[ \t\r\n][^\n]*\n)*", re.S)
_INSERT = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?INTO\s+(?:(?:`(?:[^`]|``)+`|[\w$]+)\s*\.\s*)?(?:`(?:[^`]|``)+`|[\w$]+)",
    re.I,
)
_COLUMNS = re.compile(rb"\s*\(")
_NAME = re.compile(rb"`((?:[^`]|``)+)`$|([\w$]+)$")
_SETTINGS = (
    (re.compile(rb"\bSET\s+NAMES\s+'?(\w+)", re.I), rb"binary|utf8|utf8mb3|utf8mb4"),
    (re.compile(rb"(?<!@)\bTIME_ZONE\s*=\s*'([^']*)'", re.I), rb"[+-]0?0:00|UTC"),
    (re.compile(rb"(?<!@)\bSQL_MODE\s*=\s*'([^']*)'", re.I), rb"(?!.*(?:NO_BACKSLASH_ESCAPES|ANSI)).*"),
)
"""Session settings that a file may contain, with the values that are supported here."""
_PASSED_OVER = re.compile(rb"(?:SET|USE|LOCK|UNLOCK|START|BEGIN|COMMIT)\b", re.I)
_BATCH_BYTES = 256 << 10
_HEAD_BYTES = 512
"""An upper bound for a statement's text before its rows, plus its packet header."""
_MAKES = re.compile(r"\ACREATE (DATABASE|TABLE) (?!IF NOT EXISTS)", re.I)
_HAS_ENUM = re.compile(r"\benum\s*\(", re.I)
_EMPTY_TEXT = re.compile(rb"""[(,]\s*(?:''|"")\s*[,)]""")
"""An empty string: it may be an ENUM's error value, which a strict session refuses."""


@dataclass(frozen=True)
class _Names:
    """Maps the names in a definition's text to the target's names."""

    rules: Rules

    def map_table(self, db: str, table: str, *, new: bool = False) -> Name:
        """(db, table) at the target."""
        del new
        return self.rules.routes.map_table(db, table)

    def map_database(self, db: str) -> str:
        """The database at the target."""
        return self.rules.routes.map_database(db)


class DumpStatements:
    """The dump in `folder` as the StatementSource of the window (0, `base`]. Raises ConfigError, TargetRefused."""

    def __init__(self, folder: DumpFolder, base: int, rules: Rules, dialect: Dialect, *, new_collation: bool) -> None:
        self._folder, self._base, self._rules, self._dialect = folder, base, rules, dialect
        self._new_collation = new_collation
        self.tables = [name for name in folder.tables if rules.keeps(*name)]
        self._require_loadable()
        self._names = _Names(rules)
        self._with_enums: set[Name] = set()
        self._plans = self._plan_segments()

    def list_segments(self) -> list[SegmentPlan]:
        """As StatementSource.segments: an empty segment 0, then one per database, then one per table."""
        return self._plans

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """As StatementSource.batches. Raises ConfigError for a file that is cut off or damaged."""
        if segment != self._plans[-1].number or phase != Phase.WRITE:
            return
        number = 0
        for name, file in self._list_row_files():
            for group in _group_inserts(_read_inserts(file, name[1])):
                yield self._build_batch(segment, number, name, group)
                number += 1

    def check_rows(self, max_packet: int) -> tuple[int, str]:
        """Read each file to its end; return the number of rows of the dump and a digest of everything that is loaded.

        With the digest, a load continues only with the dump that it began with. `max_packet`: bytes that a statement
        may have. Raises ConfigError naming the first file that is cut off, damaged, or has a statement that is too
        long.
        """
        files = [*self._folder.databases.values(), *self._folder.tables.values()]
        lines = [f"{file.name} {text}" for file in sorted(files) for text in read_dump_statements(file)]
        counted: Counter[Name] = Counter()
        for (db, table), file in self._list_row_files():
            rows = crc = 0
            for insert in _read_inserts(file, table):
                rows, crc = rows + insert.rows, zlib.crc32(insert.rest, crc)
                self._require_short(insert, table, file, max_packet)
            counted[db, table] += rows
            lines.append(f"{file.name} {rows} {crc}")
        self._require_row_counts(counted)
        return counted.total(), compute_statement_digest(lines)

    def _require_short(self, insert: DumpedRows, table: str, file: Path, max_packet: int) -> None:
        if len(insert.rest) + len(table) + _HEAD_BYTES > max_packet:
            raise ConfigError(
                f"a statement of the dump has {len(insert.rest)} bytes, more than the target accepts in one packet",
                where={"file": file, "max_allowed_packet": max_packet},
                hint="raise max_allowed_packet of the target, or dump with shorter statements (statement-size)",
            )

    def _require_row_counts(self, counted: Mapping[Name, int]) -> None:
        """Compare each table's rows with the count in the dump's metadata, where it has one. Raises ConfigError."""
        for name in self.tables:
            expected, actual = self._folder.metadata_rows.get(name), counted.get(name, 0)
            if expected is not None and expected != actual:
                raise ConfigError(
                    "a table of the dump does not have the number of rows given in the metadata",
                    where={"table": ".".join(name), "metadata": expected, "files": actual, "folder": self._folder.path},
                    hint="a file is missing or duplicated: copy the folder again",
                )

    def list_target_names(self) -> list[Name]:
        """(db, table) at the target of the tables that the dump creates."""
        return [self._names.map_table(*name) for name in self.tables]

    def _list_row_files(self) -> Iterator[tuple[Name, Path]]:
        wanted = set(self.tables)
        return ((name, file) for name, file in self._folder.row_files if name in wanted)

    def _require_loadable(self) -> None:
        shown = [".".join(name) for name in self.tables if self._changes_rows(name)]
        if shown:
            raise ConfigError(
                "the rules change or leave out rows of a table, but rows of a dump are loaded unchanged",
                where={"tables": ", ".join(shown[:5])},
                hint="load these tables in another way, and give --base the dump's commit_ts instead of its folder",
            )
        if self._folder.other_rows:
            raise ConfigError(
                "a dump has rows in files that are not SQL", where={"file": self._folder.other_rows[0]},
                hint="dump again as SQL: dumpling --filetype sql, mydumper without --csv and --load-data",
            )  # fmt: skip
        targets: dict[Name, Name] = {}
        for name in self.tables:
            other = targets.setdefault(self._rules.routes.map_table(*name), name)
            if other != name:
                raise ConfigError(
                    "two tables of the dump are routed into one",
                    where={"tables": f"{'.'.join(other)}, {'.'.join(name)}"},
                    hint="load them in another way, and give --base the dump's commit_ts instead of its folder",
                )

    def _changes_rows(self, name: Name) -> bool:
        filtered = "insert" in self._rules.expressions.list_filtered_kinds(
            *name
        ) or "insert" not in self._rules.events.list_passed_kinds(*name)
        return filtered or bool(self._rules.routes.extract_columns(*name))

    def _plan_segments(self) -> list[SegmentPlan]:
        """Plan the segments. Only the last one ends at the base; the others do not move the checkpoint."""
        used = {db for db, _ in self.tables}
        made = [db for db in sorted(self._folder.databases) if db in used or self._rules.keeps(db, "")]
        ddls = [(db, "", self._folder.databases[db]) for db in made]
        ddls += [(*name, self._folder.tables[name]) for name in self.tables]
        plans = [SegmentPlan(0, 0, 0, rows=0, bytes=0)]
        for number, (db, table, file) in enumerate(ddls, 1):
            last = number == len(ddls)
            plans.append(self._define(number, db, table, file, end_ts=self._base if last else 0))
        return plans

    def _define(self, number: int, db: str, table: str, file: Path, *, end_ts: int) -> SegmentPlan:
        text = next((one for one in read_dump_statements(file) if one.upper().startswith("CREATE ")), "")
        if not text:
            raise ConfigError("a schema file of the dump has no CREATE statement", where={"file": file})
        if table and _HAS_ENUM.search(text):
            self._with_enums.add((db, table))
        routed = put_target_names(text, db, self._names)
        sql = routed if self._new_collation else render_bytewise(routed, self._dialect)
        home = self._names.map_table(db, table) if table else (self._names.map_database(db), "")
        mapped = map_ddl(DdlText(self._base, home[0], home[1], sql), self._dialect).sql
        own = tuple(_MAKES.sub(r"CREATE \1 IF NOT EXISTS ", one) for one in mapped)
        if table and home[0] not in map(self._names.map_database, self._folder.databases):
            # A route with a table-pattern is no rule for the database.
            own = (f"CREATE DATABASE IF NOT EXISTS {quote_name(home[0])}", *own)
        digest = compute_statement_digest(own)
        batch = StatementBatch(number, Phase.DDL, 0, "", home[1], "ddl", own, (UNCHECKED,) * len(own), "", 0, 0, digest)
        return SegmentPlan(number, end_ts, 0, ddl=batch, ddl_commit_ts=self._base, touched=(home,), rows_ahead=True)

    def _build_batch(self, segment: int, number: int, name: Name, group: list[DumpedRows]) -> StatementBatch:
        db, table = self._names.map_table(*name)
        head = f"INSERT INTO {quote_qualified_name(db, table)}".encode()
        texts = [head + one.rest for one in group]
        # Bytes that are not UTF-8 (a dump's _binary strings) pass through the driver unchanged.
        sql = tuple(text.decode("utf-8", "surrogateescape") for text in texts)
        if name in self._with_enums:
            odd = (_EMPTY_TEXT.search(one.rest) is not None for one in group)
            sql = tuple(
                render_lenient(text, self._dialect) if has_error_values else text
                for text, has_error_values in zip(sql, odd, strict=True)
            )
        expect = tuple(one.rows for one in group)
        return StatementBatch(
            segment,
            Phase.WRITE,
            number,
            db,
            table,
            "insert",
            sql,
            expect,
            "",
            0,
            sum(expect),
            compute_statement_digest(texts),
        )


def _read_inserts(file: Path, table: str) -> Iterator[DumpedRows]:
    with open_dump_file(file) as stream:
        yield from read_inserts(file, stream, table)


def _group_inserts(inserts: Iterator[DumpedRows]) -> Iterator[list[DumpedRows]]:
    """Group statements into transactions: small statements together, a large one alone."""
    group: list[DumpedRows] = []
    size = 0
    for insert in inserts:
        if group and size + len(insert.rest) > _BATCH_BYTES:
            yield group
            group, size = [], 0
        group.append(insert)
        size += len(insert.rest)
    if group:
        yield group


@dataclass(frozen=True)
class DumpedRows:
    """An INSERT of a dump: its text after the table's name, and how many `rows` it has."""

    rest: bytes
    rows: int


def read_inserts(file: Path, stream: BinaryIO, table: str) -> Iterator[DumpedRows]:
    """The INSERT statements of `file`, in order. All must insert into `table`.

    Raises ConfigError for a file that is cut off, damaged or not a dump, or that needs other session settings.
    """
    for text, groups in _cut_statements(file, stream):
        start = _LEADING.match(text)
        body = text[start.end() :] if start is not None else text
        if not body or _PASSED_OVER.match(body):
            _require_usual_settings(file, text)
            continue
        head = _INSERT.match(body)
        if head is None:
            raise _build_refused_error(file, "has a statement that is not an INSERT", body)
        if _read_table_name(head[0]) != table:
            raise _build_refused_error(file, "has rows of a table other than the one in its name", body)
        rest = body[head.end() :]
        yield DumpedRows(rest, groups - (_COLUMNS.match(rest) is not None))


def _read_table_name(head: bytes) -> str:
    name = _NAME.search(head)
    table = b"" if name is None else name[2] or name[1].replace(b"``", b"`")
    return table.decode("utf-8", "surrogateescape")


def _require_usual_settings(file: Path, text: bytes) -> None:
    for setting, usual in _SETTINGS:
        asked = setting.search(text)
        if asked is not None and not re.fullmatch(usual, asked[1], re.I):
            raise _build_refused_error(file, "has a session setting that is not supported", text)


def _cut_statements(file: Path, stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(text without its semicolon, groups in parentheses) of each statement."""
    buffer, at, ended, groups = b"", 0, False, 0
    while True:
        match = _PLAIN.match(buffer, at) or _COMMENT.match(buffer, at)
        row = _ROW.match(buffer, at) if match is None else None
        mark = buffer[at : at + 1]
        # A match that reaches the end of the block may continue in the next one.
        if match is not None and (match.end() < len(buffer) or ended):
            at = match.end()
        elif row is not None:
            at, groups = row.end(), groups + 1
        elif match is None and mark == b";":
            yield buffer[:at], groups
            buffer, at, groups = buffer[at + 1 :], 0, 0
        elif not ended:
            _require_escapes(file, buffer, at)
            # Double the buffer each time, because a long string is scanned again from its start.
            more = _read_block(file, stream, max(_BLOCK, len(buffer)))
            buffer, ended = buffer + more, not more
        else:
            break
    rest = _LEADING.sub(b"", buffer, count=1)
    if rest:
        raise ConfigError(
            "a data file of the dump is cut off: its last statement does not end",
            where={"file": file, "from": _shorten(rest)},
            hint="copy the file again from the dump; whatever was loaded from it is recorded",
        )


def _require_escapes(file: Path, buffer: bytes, at: int) -> None:
    odd = _ODD_ESCAPE.match(buffer, at)
    if odd is not None:
        raise _build_refused_error(
            file, "has a backslash that begins no known escape", buffer[odd.end() - 2 : odd.end()]
        )


def _build_refused_error(file: Path, why: str, text: bytes) -> ConfigError:
    return ConfigError(
        f"a data file of the dump {why}",
        where={"file": file, "statement": _shorten(text)},
        hint="give a folder written by mydumper or dumpling, with backslashes escaped, names and texts in UTF-8 and"
        " times in UTC",
    )


def _shorten(text: bytes) -> str:
    return redact_sql(text[:80].decode("utf-8", "replace"))


def _read_block(file: Path, stream: BinaryIO, size: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        raise build_damaged_file_error(file, error) from error
