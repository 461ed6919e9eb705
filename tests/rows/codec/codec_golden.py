"""Compare Binlake's decoding of a capture with decoded.jsonl, row by row; every exemption is named and counted.

The reference is independent: TiDB's own codec and TableInfo wrote decoded.jsonl, without any code of Binlake. Both
decoders of Binlake are compared with it: `decode_transaction`, and `MutationBatch`, which must give the same rows.

A capture's `decoded.jsonl` uses the definition as of the binlog's schema_version; Binlake uses the definition valid at
the row's position (R-19). Exemptions, each counted under its name in `Comparison.exempt`:

- `float-exponent`: TiDB cuts a FLOAT's exponent form to 6 digits; ours must be the same after rounding to float32.
- `error-value`: TiDB shows an ENUM's ordinal 0 and its empty member alike; Binlake's text tells them apart.
- `json-double`: TiDB prints a whole double in JSON as an integer; Binlake's text keeps it a double.
- `place-added`: a column that is public at the row's position but not at its schema_version; the value must be the one
  recorded under `extra_*` as "name#id", or else the origin default.
- `place-removed`: a column that is public at its schema_version but not at its position.
- `hidden-in-delete`: a hidden column (of an expression index) in a delete image; row changes do not contain it.
- `place-replaced`: a column whose id differs between the two (MODIFY COLUMN copied it, or drop + add).
- `place-renamed`: a column that has another name at its schema_version; the value must be the one under that name.
- `absent-in-delete`: a column that the delete image lacks: decoded.jsonl fills it, Binlake leaves it out.
- `virtual-in-delete`: a virtual generated column of a delete image; row changes do not contain it.
- `gone`: a late change of a dropped or truncated table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from binlake.rows.codec import DecodeStats, MutationBatch, RowChange, decode_transaction
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.codec.jsons import show_json, write_json
from binlake.rows.codec.values import show_member_text
from binlake.rows.schema import ColumnInfo, SchemaState, TableDef, WindowSchemas
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import read_log as commit_log

OPS = {"I": "insert", "U": "update", "D": "delete"}


@dataclass
class Comparison:
    """The result: rows compared (`batched`: rows of batches), exemptions by name, the first differences as text."""

    rows: int = 0
    batched: int = 0
    transactions: int = 0
    differences: list[str] = field(default_factory=list)
    exempt: Counter[str] = field(default_factory=Counter)

    def differ(self, text: str) -> None:
        if len(self.differences) < 20:
            self.differences.append(text)


@dataclass
class Log:
    """A capture's committed transactions in commit order, and its schemas."""

    transactions: list[tuple[int, int, bytes]]
    schemas: WindowSchemas
    versions: dict[int, SchemaState]


def read_log(capture: Capture) -> Log:
    """The log as one window from an empty schema."""
    log = commit_log(capture)
    by_id = {job.id: job for _, job in log.jobs}
    ddls = [replace(d, job=by_id.get(d.job_id)) for d in log.ddls]
    schemas = WindowSchemas(SchemaState(), ddls)
    states = {
        schemas.find_schema_of_segment(i).version: schemas.find_schema_of_segment(i) for i in range(schemas.segments)
    }
    return Log([row[:3] for row in log.rows], schemas, states)


def compare(capture: Capture, every: int = 1) -> Comparison:
    """Compare every `every`-th transaction (evenly over the capture) with decoded.jsonl."""
    log, result = read_log(capture), Comparison()
    wanted = {commit_ts for i, (commit_ts, _, _) in enumerate(log.transactions) if i % every == 0}
    expected: dict[int, list[dict[str, Any]]] = {}
    for line in capture.read_decoded():
        if int(line["commit_ts"]) in wanted:
            expected.setdefault(int(line["commit_ts"]), []).append(line)
    batch, ours = MutationBatch(), list[tuple[int, int, RowChange]]()
    for commit_ts, start_ts, payload in log.transactions:
        if commit_ts in wanted:
            transaction = (commit_ts, start_ts, payload)
            rows = _compare_transaction(log, result, transaction, expected.pop(commit_ts, []))
            ours += [(commit_ts, start_ts, row) for row in rows]
            batch.add(payload, commit_ts, start_ts, log.schemas.find_schema_at(commit_ts))
            if batch.is_full:
                _compare_batch(result, batch, ours)
    _compare_batch(result, batch, ours)
    for commit_ts in expected:
        result.differ(f"{commit_ts}: decoded.jsonl has rows of a transaction that the log lacks")
    return result


def _compare_batch(result: Comparison, batch: MutationBatch, ours: list[tuple[int, int, RowChange]]) -> None:
    """Check that the rows of `batch` equal `ours`, in order; both are empty afterwards."""
    rows = batch.take().to_pylist(maps_as_pydicts="strict")
    if len(rows) != len(ours):
        result.differ(f"a batch has {len(rows)} rows instead of {len(ours)}")
    for row, (commit_ts, start_ts, change) in zip(rows, ours, strict=False):
        place = (row["commit_ts"], row["start_ts"], row["seq"], row["table_id"], row["op"])
        if place != (commit_ts, start_ts, change.seq, change.table_id, change.op):
            result.differ(f"{commit_ts} seq {change.seq}: a batch has {place}")
        elif (row["before"], row["after"]) != (change.before, change.after):
            result.differ(f"{commit_ts} seq {change.seq}: a batch has {row['before']} -> {row['after']}")
        result.batched += 1
    ours.clear()


def _compare_transaction(
    log: Log, result: Comparison, transaction: tuple[int, int, bytes], expected: list[dict[str, Any]]
) -> list[RowChange]:
    commit_ts, start_ts, payload = transaction
    place, stats = log.schemas.find_schema_at(commit_ts), DecodeStats()
    ours = list(decode_transaction(payload, commit_ts, start_ts, place, stats))
    result.transactions += 1
    kept = [line for line in expected if place.find_table(line["table_id"]) is not None]
    result.exempt["gone"] += sum(stats.gone_rows.values())
    if len(expected) - len(kept) != sum(stats.gone_rows.values()) or len(kept) != len(ours):
        result.differ(f"{commit_ts}: {len(ours)} rows, {len(expected)} in decoded.jsonl")
        return ours
    for change, line in zip(ours, kept, strict=True):
        result.rows += 1
        for problem in _row_problems(log, result, place, change, line):
            result.differ(f"{commit_ts} seq {change.seq} {line['table']}: {problem}")
    return ours


def _row_problems(
    log: Log, result: Comparison, place: SchemaState, change: RowChange, line: dict[str, Any]
) -> Iterator[str]:
    table = place.find_table(line["table_id"])
    assert table is not None
    if change.op != OPS[line["op"]]:
        yield f"op {change.op}, expected {line['op']}"
    if change.table_id != line["table_id"]:
        result.exempt["renumbered"] += 1
    for side, image in (("before", change.before), ("after", change.after)):
        if (image is None) != (line.get(side) is None):
            yield f"{side} is {image}"
        elif image is not None:
            then = _definition(log, line)
            yield from _image_problems(result, table, then, image, line, side)


def _definition(log: Log, line: dict[str, Any]) -> TableDef | None:
    version = max((v for v in log.versions if v <= line["schema_version"]), default=0)
    return log.versions[version].find_table(line["table_id"])


def _image_problems(
    result: Comparison,
    table: TableDef,
    then: TableDef | None,
    image: dict[str, str | None],
    line: dict[str, Any],
    side: str,
) -> Iterator[str]:
    theirs = {name: plain(value) for name, value in line[side].items()}
    extra = {key: plain(value) for key, value in line.get(f"extra_{side}", {}).items()}
    for name in theirs.keys() - image.keys():
        column = table.find_column(name)
        if column is not None and column.is_virtual and line["op"] == "D":
            result.exempt["virtual-in-delete"] += 1
        elif line["op"] == "D" and name in line.get("filled", ()):
            result.exempt["absent-in-delete"] += 1
        elif line["op"] == "D" and name in {c.name for c in table.all_columns if c.hidden}:
            result.exempt["hidden-in-delete"] += 1
        elif column is None or (then and _id_of(then, name) != column.id):
            result.exempt["place-removed"] += 1
        else:
            yield f"{side}.{name} is missing"
    for name, value in image.items():
        column = table.find_column(name)
        assert column is not None
        moved = then is None or _id_of(then, name) != column.id
        if name in theirs and not moved:
            if not same(result, column, value, theirs[name]):
                yield f"{side}.{name} is {value!r}, expected {theirs[name]!r}"
        else:
            yield from _by_place(result, table, column, value, theirs, extra)


def _by_place(
    result: Comparison,
    table: TableDef,
    column: ColumnInfo,
    value: str | None,
    theirs: dict[str, str | None],
    extra: dict[str, str | None],
) -> Iterator[str]:
    keys = [key for key in extra if key.endswith(f"#{column.id}")]
    want = extra[keys[0]] if keys else derive_filled_text(column)
    renamed = {text for name, text in theirs.items() if table.find_column(name) is None}
    if value == theirs.get(column.name, want) or same(result, column, value, theirs.get(column.name, want)):
        result.exempt["place-replaced" if column.name in theirs else "place-added"] += 1
    elif column.name not in theirs and value in renamed:
        result.exempt["place-renamed"] += 1
    else:
        yield f"{column.name} (by place) is {value!r}, expected {want!r}"


def _id_of(table: TableDef, name: str) -> int | None:
    column = table.find_column(name)
    return column.id if column else None


def plain(value: Any) -> str | None:
    """A value of decoded.jsonl as canonical text: hex becomes upper case without a prefix."""
    if isinstance(value, dict):
        return str(value["hex"]).upper() if "hex" in value else f"datum:{value}"
    return value


def same(result: Comparison, column: ColumnInfo, ours: str | None, theirs: str | None) -> bool:
    """Whether the texts are equal; a FLOAT in exponent form may be equal after ours is cut to TiDB's 6 digits."""
    if ours == theirs:
        return True
    if column.tp == t.FLOAT and ours and theirs and "e" in theirs and "e" in ours:
        result.exempt["float-exponent"] += 1
        return f"{np.float32(ours):.5e}" == f"{float(theirs):.5e}"
    if column.has_empty_member and ours and theirs == "":
        result.exempt["error-value"] += 1
        return show_member_text(column, ours) == theirs
    if column.tp == t.JSON and ours and theirs:
        result.exempt["json-double"] += 1
        return show_json(write_json(ours)) == theirs
    return False
