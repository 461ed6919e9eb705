"""The mirrors of every genuine capture, by the core alone: equal to what TiDB showed at each recorded commit_ts.

Spark and Delta are left out; the pipeline's own functions compute how a DDL changes existing rows (filled, converted,
copied, recovered) and the typed form of each value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.examples import spread

from binlake.changes.net import RowEvent, compute_net_changes, encode_row_key
from binlake.compare import build_canonical_converter, decode_captured_value
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions, derive_key_defaults
from binlake.errors import SchemaError
from binlake.mirror.apply import RemovedPartitions
from binlake.mirror.plan import MirrorEffect, derive_effects
from binlake.mirror.rows import Reshaper, build_typed_rows, read_mirror_texts
from binlake.rows.codec.values import show_member_text
from binlake.rows.schema import SchemaState, TableDef
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import RULES, CommitLog, read_log
from deploy.local.direct import decode_changes

pytestmark = pytest.mark.long

CAPTURES = Path(__file__).parents[1] / "captures"
Name = tuple[str, str]
Row = dict[str, str | None]


class Mirrors:
    """All mirrors of a log, folded in memory from one recorded state to the next."""

    def __init__(self, log: CommitLog) -> None:
        self._log, self._lo, self._schema = log, 0, SchemaState()
        self.tables: dict[Name, tuple[TableDef, list[Row]]] = {}
        self._dropped: dict[int, tuple[TableDef, list[Row]]] = {}
        self.inexact: set[Name] = set()

    def advance(self, hi: int) -> None:
        lo, self._lo = self._lo, hi
        rows = [row for row in self._log.rows if lo < row[0] <= hi]
        logged = [ddl for ddl in self._log.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in self._log.jobs if lo < ts <= hi]
        ddls = plan_ddls(self._schema, logged, jobs, RULES, lo=lo)
        cuts = [ddl for ddl in ddls if ddl.opens_segment]
        segments = Segments(lo, hi, tuple(ddl.since for ddl in cuts))
        definitions = WindowDefinitions(self._schema, ddls)
        events = decode_changes(rows, build_window_schemas(self._schema, logged, jobs, lo))
        for number in range(len(cuts) + 1):
            if number:
                self._ddl(cuts[number - 1])
            since, until = segments.find_bounds(number)
            for name, found in events.items():
                own = [event for event in found if since <= event.commit_ts < until]
                if own:
                    self._rows(definitions.require_definition_within(*name, since, until), own)
        self._schema = self._schema.fold(jobs)

    def _ddl(self, ddl: LandedDdl) -> None:
        was = dict(self.tables)
        for effect in derive_effects(ddl):
            name = (effect.table.db, effect.table.name)
            if effect.kind in ("alter", "copy"):
                assert effect.source is not None
                source, rows = was[effect.source.db, effect.source.name]
                self.tables[name] = effect.table, reshape(source, effect.table, rows, effect.renamed)
            elif effect.kind == "inexact":
                self.inexact.add(name)
            elif effect.kind == "remove":
                self._remove(effect, name)
            elif effect.kind == "recover":
                self.tables[name] = effect.table, self._dropped[effect.table.id][1]
            else:
                if name in was and effect.kind in ("drop", "truncate"):
                    self._dropped[was[name][0].id] = self.tables.pop(name)
                if effect.kind != "drop":
                    self.tables[name] = effect.table, []

    def _remove(self, effect: MirrorEffect, name: Name) -> None:
        assert effect.source is not None
        removed, (table, rows) = RemovedPartitions(effect.source, effect.table), self.tables[name]
        try:
            found = [kept for batch in to_typed(table, rows).to_batches() for kept in removed.drop_rows(batch)]
        except SchemaError:
            self.inexact.add(name)
            return
        self.tables[name] = table, to_text(table, pa.Table.from_batches(found)) if found else []

    def _rows(self, table: TableDef, events: list[RowEvent]) -> None:
        columns = table.find_identity().columns
        by_key: dict[str, list[Row]] = {}
        for row in self.tables[table.db, table.name][1]:
            by_key.setdefault(encode_row_key(row, columns), []).append(row)
        for change in compute_net_changes(events, table.find_identity(), derive_key_defaults(table), strict=True):
            kept = by_key.get(change.key, [])
            if change.op == "delete":
                by_key[change.key] = kept[change.copies :]
            else:
                image = dict(change.after or {})
                by_key[change.key] = [*kept, *[image] * change.copies] if change.op == "insert" else [image]
        self.tables[table.db, table.name] = table, [row for rows in by_key.values() for row in rows]


def to_typed(table: TableDef, rows: list[Row]) -> pa.Table:
    texts = {column.name: [row[column.name] for row in rows] for column in table.row_columns}
    return build_typed_rows(table, texts, [1] * len(rows), [0] * len(rows))


def to_text(table: TableDef, rows: pa.Table) -> list[Row]:
    texts = read_mirror_texts(table, rows)
    return [dict(zip(texts, values, strict=True)) for values in zip(*texts.values(), strict=True)]


def reshape(before: TableDef, after: TableDef, rows: list[Row], renamed: Mapping[str, str]) -> list[Row]:
    found = list(Reshaper(before, after, renamed).reshape_batches(iter(to_typed(before, rows).to_batches())))
    return to_text(after, pa.Table.from_batches(found)) if found else []


def raw(table: TableDef, name: str, text: str | None) -> str | bytes | None:
    column = table.find_column(name)
    if column is None or text is None:
        return text
    # TiDB shows an ENUM's error value and its empty member alike; the lake tells them apart.
    return bytes.fromhex(text) if column.is_binary else show_member_text(column, text)


def to_comparable(content: dict[str, Any], mirror: tuple[TableDef, list[Row]]) -> tuple[Counter[Any], Counter[Any]]:
    """(recorded rows, the mirror's rows), both in the form of `binlake.compare`, without virtual columns."""
    hidden = set(content.get("virtual") or ())
    rules = {
        name: (place, build_canonical_converter(kind))
        for place, (name, kind) in enumerate(zip(content["columns"], content["types"], strict=True))
        if name not in hidden
    }
    table, rows = mirror
    assert [column.name for column in table.row_columns] == list(rules)
    found = Counter(
        tuple(rule(raw(table, name, row[name])) for name, (_, rule) in rules.items())
        for row in to_text(table, to_typed(*mirror))
    )
    wanted = Counter(
        tuple(rule(decode_captured_value(row[place])) for place, rule in rules.values()) for row in content["rows"]
    )
    assert len(rows) == found.total()
    return wanted, found


@pytest.mark.parametrize(
    ("name", "tables"),
    [*spread([("ddl", 200), ("keys", 115), ("anomaly", 44), ("partition_gen", 48), ("ddl_late", 200),
              ("shard_mixed", 96), ("keys_oldcoll", 115), ("types_all", 8), ("shard", 96)], least=5),
     pytest.param("txn", 12, marks=pytest.mark.soak)],
)  # fmt: skip
def test_mirrors_equal_every_recorded_state(name: str, tables: int) -> None:  # S0-60 S0-64 R-19 C-07
    capture = Capture(CAPTURES / name)
    mirrors, compared = Mirrors(read_log(capture)), 0
    for state in read_expected_states(capture):
        mirrors.advance(state.commit_ts)
        for content in state.contents:
            place = (content["schema"], content["name"])
            assert (place in mirrors.tables) == (content.get("kind") == "BASE TABLE") or content.get("absent"), place
            if content.get("kind") == "BASE TABLE" and place not in mirrors.inexact:
                wanted, found = to_comparable(content, mirrors.tables[place])
                assert found - wanted == wanted - found == Counter(), (state.step, place)
                compared += 1
    assert compared >= tables
