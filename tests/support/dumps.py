"""Write a dump of a server's databases in the form of dumpling or mydumper: schema files, rows, metadata."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote as percent

import pyarrow as pa
from support.mariadb import MariaDb, rows

_HEAD = "/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n"
_ESCAPED = {"\\": "\\\\", "'": "\\'", '"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\0", "\x1a": "\\Z"}


def literal(value: object, mark: str) -> str:
    """A value as a literal of the dump: strings quoted with `mark`, bytes as hex."""
    match value:
        case None:
            return "NULL"
        case bool() | int() | float() | Decimal():
            return str(value)
        case bytes():
            return "x'" + value.hex() + "'"
        case datetime() | date() | timedelta():
            return f"{mark}{value}{mark}"
        case _:
            return mark + "".join(_ESCAPED.get(sign, sign) for sign in str(value)) + mark


def inserts(
    table: str, lines: Sequence[Sequence[object]], *, mark: str = "'", a_statement: int = 3, columns: str = ""
) -> str:
    """INSERT statements of `lines`, several rows each; `columns`: the column list if not all columns are written."""
    found = []
    for start in range(0, len(lines), a_statement):
        part = lines[start : start + a_statement]
        texts = ("(" + ",".join(literal(value, mark) for value in line) + ")" for line in part)
        found.append(f"INSERT INTO `{table}`{columns} VALUES\n" + ",\n".join(texts) + ";\n")
    return "".join(found)


def write_dump(
    server: MariaDb,
    databases: Sequence[str],
    folder: Path,
    commit_ts: int,
    *,
    style: str = "dumpling",
    compression: str = "",
    rows_a_file: int = 5,
) -> Path:
    """Dump `databases` as they are now, and return the folder; its metadata says `commit_ts`."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = '"' if style == "mydumper" else "'"
    for db in databases:
        made = rows(server, f"SHOW CREATE DATABASE `{db}`")[0][1]
        put(folder / f"{percent(db, safe='')}-schema-create.sql", f"{made};\n", compression)
        for (name,) in rows(
            server, "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY 1", [db]
        ):
            base = f"{percent(db, safe='')}.{percent(name, safe='')}"
            create = rows(server, f"SHOW CREATE TABLE `{db}`.`{name}`")[0][1]
            put(folder / f"{base}-schema.sql", f"{_HEAD}\n{create};\n", compression)
            columns = _columns(server, db, name)
            lines = rows(server, f"SELECT {', '.join(columns.values())} FROM `{db}`.`{name}`")
            listed = f" ({','.join(columns)})" if len(columns) < _count_columns(server, db, name) else ""
            for number, start in enumerate(range(0, len(lines), rows_a_file)):
                text = _HEAD + inserts(name, lines[start : start + rows_a_file], mark=mark, columns=listed)
                shown = f"{number:09}" if style == "dumpling" else f"{number:05}"
                put(folder / f"{base}.{shown}.sql", text, compression)
    (folder / "metadata").write_text(
        f"Started dump at: 2026-01-01 00:00:00\nSHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: {commit_ts}\n\n"
        "Finished dump at: 2026-01-01 00:00:01\n"
    )
    return folder


def _columns(server: MariaDb, db: str, table: str) -> dict[str, str]:
    """By dumped column, the expression to select: times as their texts, FLOAT with all its digits."""
    found = rows(
        server,
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        " AND extra NOT LIKE '%%GENERATED%%' ORDER BY ordinal_position",
        [db, table],
    )
    texts = {"date": "CAST({} AS CHAR)", "float": "CAST({} AS DOUBLE)"}
    texts |= dict.fromkeys(("time", "datetime", "timestamp"), texts["date"])
    return {f"`{name}`": texts.get(kind, "{}").format(f"`{name}`") for name, kind in found}


def _count_columns(server: MariaDb, db: str, table: str) -> int:
    query = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
    return int(rows(server, query, [db, table])[0][0])


def put(path: Path, text: str, compression: str = "") -> None:
    """Write a file of a dump, compressed as its extension says."""
    data = text.encode()
    if compression == "gz":
        data = gzip.compress(data)
    elif compression == "zst":
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.with_name(path.name + (f".{compression}" if compression else "")).write_bytes(data)
