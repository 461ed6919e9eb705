"""A folder that mydumper or dumpling wrote: its files, by their contents, and the position at which it was dumped.

`DB-schema-create.sql` creates a database, `DB.TABLE-schema.sql` a table, `DB.TABLE.NUMBER.sql` (or without a number)
has rows; each may be compressed (`.gz`, `.zst`). Names are percent-encoded where necessary. For a view there is a
placeholder table besides its `-schema-view.sql`: both are skipped, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa

from binlake.dialect.names import split_statements
from binlake.dialect.tokens import render, tokenize
from binlake.errors import ConfigError
from binlake.mysqlbinlog.model import BinlogPosition

METADATA = "metadata"
_TIDB_LOG = "tidb-binlog"
_ENTRY = re.compile(r"^\s*(\w+)\s*[:=]\s*(.*?)\s*$")
_NEXT_PART = re.compile(r"^\s*(SHOW (SLAVE|REPLICA) STATUS|\[(replication|config|`).*|Finished dump)", re.IGNORECASE)
"""What follows the position: the server's own source, the dump's options, tables."""
_FILE = frozenset({"log", "file", "source_log_file"})
_OFFSET = frozenset({"pos", "position", "source_log_pos"})
_GTIDS = frozenset({"gtid", "executed_gtid_set"})
_ENDING = re.compile(r"(?P<name>.+)\.sql(?:\.gz|\.zst)?")
_DATABASE, _TABLE, _VIEW = "-schema-create", "-schema", "-schema-view"
_ROUTINES = ("-schema-triggers", "-schema-post", "-schema-sequence")
_ROWS = re.compile(r"(?P<db>[^.]+)\.(?P<table>.+?)(?:\.(?P<number>\d+)){0,2}")
_TABLE_ENTRY = re.compile(
    r"^\[`(?P<db>(?:[^`]|``)+)`\.`(?P<shown>(?:[^`]|``)+)`\]|^real_table_name\s*=\s*(?P<real>.*?)\s*$"
    r"|^rows\s*=\s*(?P<rows>\d+)\s*$",
    re.M,
)
_OTHER_ROWS = (".csv", ".dat", ".parquet")
_COMPRESSED = (".gz", ".zst", ".lz4", ".bz2", ".xz", ".snappy")
Name = tuple[str, str]


@dataclass(frozen=True)
class DumpPosition:
    """Where a dump was taken: `commit_ts` of a dump of TiDB (else 0), or the position in a MySQL server's log."""

    commit_ts: int
    position: BinlogPosition


def read_dump_position(folder: Path) -> DumpPosition:
    """The position in the metadata of the dump in `folder`. Raises ConfigError."""
    try:
        text = (folder / METADATA).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the folder has no metadata of a dump: {error}", where={"folder": folder}, hint="name the dump's folder"
        ) from None
    return parse_dump_position(folder, text)


def parse_dump_position(folder: Path, metadata: str) -> DumpPosition:
    """The position in `metadata`, the text of the dump's metadata in `folder`. Raises ConfigError."""
    entries = _parse_entries(metadata.splitlines())
    file, offset, gtids = (_find_first(entries, names) for names in (_FILE, _OFFSET, _GTIDS))
    if not file or not offset.isdecimal():
        raise ConfigError(
            "the dump's metadata has no position",
            where={"file": folder / METADATA},
            hint="dump with a consistent snapshot: mydumper without --no-locks, dumpling with --consistency auto",
        )
    if file == _TIDB_LOG:
        return DumpPosition(int(offset), BinlogPosition("", 0))
    return DumpPosition(0, BinlogPosition(file, int(offset), "".join(gtids.split())))


def _parse_entries(lines: list[str]) -> list[tuple[str, str]]:
    """(name, value) of the lines up to the end of the position; a GTID set may take several lines."""
    entries: list[tuple[str, str]] = []
    for line in lines:
        if _NEXT_PART.match(line) and any(name in _FILE for name, _ in entries):
            break
        entry = _ENTRY.match(line)
        if entries and entries[-1][1].endswith(","):
            entries[-1] = (entries[-1][0], entries[-1][1] + line.strip().strip("\"'"))
        elif entry is not None:
            entries.append((entry[1].lower(), entry[2].strip("\"'")))
    return entries


def _find_first(entries: list[tuple[str, str]], names: frozenset[str]) -> str:
    return next((value for name, value in entries if name in names), "")


@dataclass(frozen=True)
class DumpFolder:
    """The contents of a dump: the files that create `databases` and `tables`, each table's `rows`; names of `views`.

    `metadata_rows`: number of rows of a table, if the metadata has it (mydumper). `left_out`: files with triggers,
    routines, events and sequences. `other_rows`: files with rows that are not SQL, or that cannot be decompressed.
    `metadata`: its text, read once with the rest.
    """

    path: Path
    databases: dict[str, Path]
    tables: dict[Name, Path]
    rows: dict[Name, tuple[Path, ...]]
    views: tuple[Name, ...]
    metadata_rows: dict[Name, int]
    left_out: tuple[str, ...] = ()
    other_rows: tuple[Path, ...] = ()
    metadata: str = ""

    @property
    def position(self) -> DumpPosition:
        """Where the dump was taken. Raises ConfigError if its metadata does not say."""
        return parse_dump_position(self.path, self.metadata)

    @property
    def row_files(self) -> list[tuple[Name, Path]]:
        """All files with rows and their tables, in a fixed order."""
        return [(name, file) for name in sorted(self.rows) for file in self.rows[name]]


def read_dump_folder(path: Path) -> DumpFolder:
    """The files of the dump in `path`. Raises ConfigError naming what is missing or cannot be loaded."""
    files, metadata = _list_files(path), _read_metadata(path)
    _refuse_numbered_names(path, metadata)
    matches = ((_ENDING.fullmatch(file.name), file) for file in files)
    names = {match["name"]: file for match, file in matches if match is not None}
    views = {_parse_table_name(name.removesuffix(_VIEW)) for name in names if name.endswith(_VIEW)}
    databases = {unquote(n.removesuffix(_DATABASE)): file for n, file in names.items() if n.endswith(_DATABASE)}
    made = {_parse_table_name(n.removesuffix(_TABLE)): file for n, file in names.items() if n.endswith(_TABLE)}
    tables = {name: file for name, file in sorted(made.items()) if name not in views}
    missing = sorted({db for db, _ in tables} - databases.keys())
    if not tables or missing:
        raise ConfigError(
            "a folder of definitions is not a complete dump",
            where={"folder": path, "missing": ", ".join(f"{db}{_DATABASE}.sql" for db in missing) or f"*{_TABLE}.sql"},
            hint="name the folder that mydumper or dumpling wrote, with its schema files",
        )
    return DumpFolder(
        path, databases, tables, _find_row_files(names, tables), tuple(sorted(views)), _read_row_counts(metadata),
        left_out=tuple(sorted(file.name for name, file in names.items() if name.endswith(_ROUTINES))),
        other_rows=tuple(file for file in files if _has_other_rows(file.name)), metadata=metadata,
    )  # fmt: skip


def read_dump_statements(file: Path) -> Iterator[str]:
    """The statements of a schema file, without standalone comments. Raises ConfigError for a damaged file."""
    with open_dump_file(file) as stream:
        data = read_all(file, stream)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"a definition of the dump is not in UTF-8: {error.reason} at byte {error.start}", where={"file": file},
            hint="dump with the character set utf8mb4",
        ) from error  # fmt: skip
    for tokens in split_statements(tokenize(text)):
        if tokens:
            yield render(tokens)


def open_dump_file(file: Path) -> BinaryIO:
    """Open the file for reading, decompressed. Raises ConfigError."""
    try:
        return cast(BinaryIO, pa.input_stream(str(file), compression="detect"))
    except OSError as error:
        raise build_damaged_file_error(file, error) from error


def read_all(file: Path, stream: BinaryIO) -> bytes:
    """Read the rest of `stream`. Raises ConfigError."""
    try:
        return bytes(stream.read())
    except OSError as error:
        raise build_damaged_file_error(file, error) from error


def build_damaged_file_error(file: Path, error: OSError) -> ConfigError:
    """The error for a file that cannot be read to its end."""
    return ConfigError(
        f"a file of the dump cannot be read: {error}", where={"file": file}, hint="copy it again from the dump"
    )


def _list_files(path: Path) -> list[Path]:
    try:
        files = sorted(path.iterdir())
    except OSError as error:
        raise ConfigError(
            f"the folder of a dump cannot be read: {error.strerror}", where={"folder": path}, hint="check its path"
        ) from error
    if any(file.name == "metadata.partial" for file in files):
        raise ConfigError("the dump did not finish: its metadata is partial", where={"folder": path}, hint="dump again")
    return files


def _has_other_rows(name: str) -> bool:
    packed = next((ending for ending in _COMPRESSED if name.endswith(ending)), "")
    plain = name.removesuffix(packed)
    return plain.endswith(_OTHER_ROWS) or (plain.endswith(".sql") and _ENDING.fullmatch(name) is None)


def _refuse_numbered_names(path: Path, metadata: str) -> None:
    """Raises ConfigError if mydumper gave the files of a table a number because its name cannot be a file name."""
    shown = ""
    for match in _TABLE_ENTRY.finditer(metadata):
        real = (match["real"] or "").strip("`\"'")
        if match["shown"]:
            shown = match["shown"]
        elif real and real != shown.replace("``", "`"):
            raise ConfigError(
                "a table of the dump has another name in its files", where={"folder": path, "table": real},
                hint="dump with dumpling, or load this dump with myloader and pass its commit_ts as --base",
            )  # fmt: skip


def _read_row_counts(metadata: str) -> dict[Name, int]:
    counts: dict[Name, int] = {}
    name: Name = ("", "")
    for match in _TABLE_ENTRY.finditer(metadata):
        if match["shown"]:
            name = match["db"].replace("``", "`"), match["shown"].replace("``", "`")
        elif match["rows"]:
            counts[name] = int(match["rows"])
    return counts


def _read_metadata(path: Path) -> str:
    metadata = path / METADATA
    return metadata.read_text(encoding="utf-8", errors="replace") if metadata.is_file() else ""


def _find_row_files(names: dict[str, Path], tables: dict[Name, Path]) -> dict[Name, tuple[Path, ...]]:
    numbered: dict[Name, list[tuple[int, Path]]] = {name: [] for name in tables}
    for name, file in names.items():
        match = _ROWS.fullmatch(name)
        if match is None or name.endswith((_TABLE, _VIEW, _DATABASE, *_ROUTINES)):
            continue
        table = unquote(match["db"]), unquote(match["table"])
        if table not in numbered:
            raise ConfigError(
                "a dump has rows of a table without its definition",
                where={"file": file, "missing": f"{match['db']}.{match['table']}{_TABLE}.sql"},
                hint="dump the definitions too, or remove the file",
            )
        numbered[table].append((int(match["number"] or 0), file))
    return {name: tuple(file for _, file in sorted(files)) for name, files in numbered.items()}


def _parse_table_name(name: str) -> Name:
    db, _, table = name.partition(".")
    return unquote(db), unquote(table)
