"""The paths of a feed's files below its root, as in TiCDC's storage sink.

`{schema}/{table}/{version}/{date}/CDC{number}.{ending}` has data, `.../{date}/meta/CDC.index` the greatest number of a
folder, `{schema}/{table}/meta/schema_{version}_{checksum}.json` a definition, and `metadata` the checkpoint. Binlake
adds the file `_binlake/plan` (binlake.feed.files.publisher).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from binlake import tso
from binlake.errors import Permanent

METADATA = "metadata"
PLAN = "_binlake/plan"
ENDINGS = {"avro": "avro", "canal-json": "json", "csv": "csv"}
"""The suffix of each protocol's data files."""
_DATA = re.compile(
    r"(?P<folder>(?P<db>[^/]+)/(?P<table>[^/]+)/(?P<version>\d+)(/(?P<date>[\d-]+))?)/CDC(?P<number>\d+)\.\w+"
)
_INDEX = re.compile(r"CDC(\d+)\.\w+\s*")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\%*?"<>|:]')
_DATE_CHARACTERS = {"none": 0, "year": 4, "month": 7, "day": 10}


@dataclass(frozen=True)
class DataFile:
    """A data file. `number` orders the files of one `folder`."""

    path: str
    folder: str
    db: str
    table: str
    version: int
    date: str
    number: int


def parse_data_path(path: str) -> DataFile | None:
    """The data file at `path`; None for another file."""
    match = _DATA.fullmatch(path)
    if match is None:
        return None
    names = (unquote(match["db"]), unquote(match["table"]))
    return DataFile(path, match["folder"], *names, int(match["version"]), match["date"] or "", int(match["number"]))


def build_table_folder(db: str, table: str) -> str:
    """The folder of a table; each character that a path cannot have is replaced by `%` and its hex code."""
    return f"{_escape_name(db)}/{_escape_name(table)}" if table else _escape_name(db)


def build_data_folder(db: str, table: str, version: int, date: str) -> str:
    """The folder of a table's data of one version and date."""
    return "/".join([build_table_folder(db, table), str(version), *([date] if date else [])])


def build_data_path(folder: str, number: int, width: int, protocol: str) -> str:
    """The path of the data file `number` of `folder`."""
    return f"{folder}/CDC{number:0{width}}.{ENDINGS[protocol]}"


def build_index_path(folder: str) -> str:
    """The path of the index of `folder`."""
    return f"{folder}/meta/CDC.index"


def parse_index_number(content: bytes | None, folder: str) -> int:
    """The greatest number in the index; 0 without an index. Raises Permanent for a damaged one."""
    if content is None:
        return 0
    match = _INDEX.fullmatch(content.decode("utf-8", "replace"))
    if match is None:
        raise Permanent(
            "an index of a feed's files is damaged", where={"folder": folder}, hint="write the name of its last file"
        )
    return int(match[1])


def build_schema_path(db: str, table: str, version: int, checksum: int) -> str:
    """The path of the file with a table's definition, or with a DDL on a database (`table` empty)."""
    return f"{build_table_folder(db, table)}/meta/schema_{version}_{checksum:010}.json"


def format_date(commit_ts: int, separator: str) -> str:
    """The folder of a commit's date in UTC; empty for the separator `none`."""
    return tso.to_datetime(commit_ts).strftime("%Y-%m-%d")[: _DATE_CHARACTERS[separator]]


def _escape_name(name: str) -> str:
    if name in (".", "..", "meta"):
        return "".join(f"%{ord(sign):02X}" for sign in name)
    return _UNSAFE.sub(lambda sign: quote(sign[0], safe=""), name)
