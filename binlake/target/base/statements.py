"""A dump as the statements of one window (0, B]: a segment per definition, and all rows in the last segment.

Rule: the same dump and rules give the same batches. So a killed load continues from the ledger, and another dump in its
place is refused.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from binlake.base.sql import Dialect
from binlake.dialect import DdlText, map_ddl, put_target_names, render_bytewise
from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import DumpFolder, Name, open_dump_file, read_dump_statements
from binlake.rules import Rules
from binlake.statements.batch import UNCHECKED, Phase, StatementBatch, compute_statement_digest
from binlake.statements.lenient import render_lenient
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.base.scan import DumpedRows, read_inserts
from binlake.target.segments import SegmentPlan

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
