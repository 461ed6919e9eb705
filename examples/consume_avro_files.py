"""Rebuilds a table in SQLite from a feed's Avro files, up to the feed's checkpoint; run it again for later changes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import fastavro
from replica import SqliteReplica


def consume(folder: Path, table: str, replica: SqliteReplica) -> None:
    """Apply the new changes up to the checkpoint of the feed."""
    # All changes up to the checkpoint are in the files; later ones may be an incomplete window.
    checkpoint = json.loads((folder / "metadata").read_text())["checkpoint-ts"]
    done = replica.positions.get(table, 0)
    for file in list_data_files(folder.joinpath(*table.split(".", 1))):
        with file.open("rb") as stream:
            reader = fastavro.reader(stream)
            schema = find_value_schema(reader.writer_schema)
            for record in reader:
                if done < record["commit_ts"] <= checkpoint:
                    replica.apply(record["key"], record["value"], schema)
    replica.commit({table: checkpoint})


def list_data_files(folder: Path) -> list[Path]:
    """The data files of a table in the order of its changes: by version, date and number, up to each index."""
    files: list[Path] = []
    for index in folder.glob("**/meta/CDC.index"):
        last = index.read_text().strip()
        # All file numbers have the same number of digits, so names can be compared as text.
        files += [file for file in index.parent.parent.glob("CDC*.avro") if file.name <= last]
    return sorted(files, key=lambda file: (int(file.relative_to(folder).parts[0]), file.parts[-2:]))


def find_value_schema(schema: dict) -> dict:
    """The schema of the rows, taken from the schema of a file's records."""
    value = next(field["type"] for field in schema["fields"] if field["name"] == "value")
    return value[1]


def main() -> None:
    """Read the arguments and consume."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--table", required=True, help="as schema.table")
    parser.add_argument("--database", required=True)
    args = parser.parse_args()
    replica = SqliteReplica(args.database, args.table)
    consume(args.folder, args.table, replica)
    replica.close()


if __name__ == "__main__":
    main()
