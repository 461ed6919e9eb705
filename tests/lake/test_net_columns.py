"""Differences computed from columns equal those computed event by event, whatever the history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa
import pytest
from support.examples import spread

from binlake.audit.diff import KeyDifferences, _diff_changes, _diff_events, _sort
from binlake.errors import SchemaError
from binlake.lake.mutations import Row, RowVersion
from binlake.lake.tables import MUTATION
from binlake.rows.schema import mysqltypes as t
from deploy.local.sample_lake import build_table

TYPES = {"id": t.LONGLONG, "code": t.VARCHAR, "note": t.VARCHAR}
KEYS = [["id"], ["id", "code"]]


def build_changes(versions: Sequence[RowVersion], chance: random.Random) -> pa.Table:
    """The versions as rows of `mutation`, in any order and in several pieces."""
    rows = [asdict(version) for version in versions]
    chance.shuffle(rows)
    for row in rows:
        row |= {side: None if row[side] is None else list(row[side].items()) for side in ("before", "after")}
    schema = MUTATION.build_arrow_schema()
    kinds = pa.schema([schema.field(name) for name in rows[0]]) if rows else schema
    cut = len(rows) // 3
    return pa.concat_tables([pa.Table.from_pylist(part, kinds) for part in (rows[:cut], rows[cut:])])


def draw_history(chance: random.Random, keys: Sequence[str], *, uneven: bool) -> list[RowVersion]:
    """Changes of few rows, which also move to other keys and come back; `uneven`: images lack or swap columns."""

    def draw_row() -> Row:
        row: Row = {
            "id": str(chance.choice((-3, 7, 12, 100))), "code": chance.choice(("a", 'b"', "ü", "10")),
            "note": chance.choice((None, "x", "y")),
        }  # fmt: skip
        if uneven and chance.random() < 0.4:
            del row["note"]
        return dict(reversed(row.items())) if uneven and chance.random() < 0.3 else row

    there: dict[tuple[str | None, ...], Row] = {}
    versions = []
    for number in range(chance.randrange(40)):
        after = None if there and chance.random() < 0.4 else draw_row()
        key = None if after is None else tuple(after[name] for name in keys)
        old = chance.choice(list(there)) if after is None or (there and chance.random() < 0.6) else key
        if key is not None and key != old and key in there:
            continue
        before = there.pop(old, None) if old is not None else None
        if before is None and after is None:
            continue
        if after is not None and key is not None:
            there[key] = after
        op = "delete" if after is None else "insert" if before is None else "update"
        versions.append(RowVersion(10 + number // 3, 5, number, 1, "d", "t", op, "", None, before, after))
    # The first changes are before the moment from which the difference is asked for.
    return versions[chance.randrange(len(versions) + 1) :]


@pytest.mark.parametrize(
    ("keys", "uneven"), spread([(KEYS[0], False), (KEYS[0], True), (KEYS[1], True), (KEYS[1], False)], least=2)
)
def test_columns_say_what_events_say(keys: list[str], *, uneven: bool) -> None:
    definition = build_table("t", 1, TYPES, keys, "d")
    kinds = set()
    for seed in range(250):
        chance = random.Random(seed)
        versions = draw_history(chance, keys, uneven=uneven)
        found = _diff_changes(definition, build_changes(versions, chance))
        assert isinstance(found, KeyDifferences)
        expected = _sort(_diff_events(definition, versions))
        assert list(found) == list(expected), seed
        assert found.kinds == [row.kind for row in expected]
        assert list(found[1:4]) == list(expected[1:4])
        for kind in ("added", "removed", "changed"):
            assert list(found.select(kind)) == [row for row in expected if row.kind == kind]
        kinds |= set(found.kinds)
    assert kinds == {"added", "removed", "changed"}


def test_images_without_a_key_column_are_left_to_the_events_and_wrong_ones_are_refused() -> None:
    definition, chance = build_table("t", 1, TYPES, ["id"], "d"), random.Random(0)
    lacking = [RowVersion(1, 1, 0, 1, "d", "t", "insert", "", None, None, {"code": "a"})]
    found = _diff_changes(definition, build_changes(lacking, chance))
    assert (found, len(found)) == (_sort(_diff_events(definition, lacking)), 1)
    wrong = [RowVersion(1, 1, 0, 1, "d", "t", "update", "", None, None, {"id": "1"})]
    with pytest.raises(SchemaError, match="of kind update has the wrong images") as refused:
        _diff_changes(definition, build_changes(wrong, chance))
    assert "commit_ts" in str(refused.value)
