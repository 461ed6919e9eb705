"""The net changes of a window as SQL: the batches of a group of keys do not depend on the parts of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pyarrow as pa
import pytest
from support.engines import HostileEngine
from support.netchanges import WINDOW, changes, definitions

from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable
from binlake.errors import Permanent
from binlake.lake.paths import LakePaths
from binlake.lake.tables import STATEMENT
from binlake.spark_jobs.engine.engine import Engine, LocalEngine
from binlake.spark_jobs.engine.rows import MemoryRows
from binlake.spark_jobs.shared import render, rendered
from binlake.spark_jobs.shared.netchange import find_groups
from binlake.spark_jobs.shared.render import Origins, Renderer
from binlake.spark_jobs.shared.rendered import Rendered, RenderGroup
from binlake.statements import BatchLimits, Phase
from binlake.statements.batch import compute_digest_of_index

LIMITS = BatchLimits(rows=7)
RENDERER = Renderer(WINDOW, definitions(), "mariadb", LIMITS, plain=False)


def render_groups(engine: Engine, rows: pa.Table, groups: int, folder: str, draw: Random) -> Rendered:
    """The statements of `rows`, whose groups are in parts of any size and order."""
    shuffled = rows.take(pa.array(draw.sample(range(rows.num_rows), rows.num_rows)))
    numbers = find_groups(shuffled["key"], groups)
    inputs = []
    for group in range(groups):
        own = shuffled.filter(pa.array(numbers == group))
        size = draw.randint(1, own.num_rows)
        inputs.append((group, (MemoryRows(own.slice(0, size)), MemoryRows(own.slice(size)))))
    return Rendered.join(engine.run(RenderGroup(RENDERER, folder, engine.build_keeper()), inputs))


def test_batches_depend_on_rows_and_groups_only(tmp_path: object) -> None:  # R-18 R-62
    draw, rows = Random(11), changes(Random(11), 300)
    folder = LakePaths(str(tmp_path)).locate_table(STATEMENT.name)
    found = [render_groups(engine, rows, 4, folder, draw) for engine in (LocalEngine(), HostileEngine(draw))]
    digests = [compute_digest_of_index(one.index.to_pylist()) for one in found]
    assert digests[0] == digests[1]
    assert found[0].change == found[1].change
    assert (found[0].held is None, found[1].held is None) == (False, True)
    assert found[0].held is not None
    held = [one.batch for one in found[0].held]
    kinds = {(batch.phase, batch.kind) for batch in held}
    assert kinds == {(Phase.DELETE, "delete"), (Phase.WRITE, "replace"), (Phase.WRITE, "insert")}
    places = [(batch.segment, batch.phase, batch.batch) for batch in held]
    assert len(set(places)) == len(places)
    assert sum(batch.rows for batch in held) == sum(rows["copies"].to_pylist())


def test_more_batches_than_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "GROUP_BATCHES", 2)
    with pytest.raises(Permanent, match="more batches than there are batch numbers") as refused:
        list(RENDERER(0, changes(Random(3), 200)))
    assert "target.batch" in refused.value.hint


def test_rows_of_tables_with_columns_of_their_own_keep_their_values() -> None:
    draw = Random(3)
    for is_several in (False, True):
        place = SegmentTable(0, "d", "a")
        rows = [row for row in changes(draw, 120, 1).to_pylist() if row["table"] == "a" and row["op"] != "delete"]
        moved = draw.sample([row["key"] for row in rows], 10)
        traced = {key: draw.choice([None, f'["{number}"]']) for number, key in enumerate(moved)}
        table = pa.Table.from_pylist(rows, schema=changes(draw, 1).schema)
        marked, had_values = Origins({place: traced}, {place: is_several}).mark_rows(place, table)
        shown = {row["key"]: (row["anew"], row["origin"]) for row in marked.to_pylist()}
        assert shown == {row["key"]: _expect(row["key"], traced, is_several) for row in rows}
        kept = {key for key, (_, origin) in shown.items() if origin is not None}
        assert {row["key"] for row in had_values.to_pylist()} == kept
        assert kept


def _expect(key: str, traced: Mapping[str, str | None], is_several: bool) -> tuple[bool, str | None]:
    """Whether the row is written anew, and whose values it gets."""
    anew = is_several or key in traced
    return anew, (traced.get(key, key) if anew else None)


def test_keys_of_a_table_whose_types_may_differ_are_listed() -> None:
    # A DECIMAL has more values between two integers than their distance.
    rows = [row for row in changes(Random(5), 900, 1).to_pylist() if row["table"] == "a" and row["op"] != "delete"]
    named = [{**row, "key": f'["{n}"]', "after": [("id", str(n)), ("text", "")]} for n, row in enumerate(rows, 1000)]
    table = pa.Table.from_pylist(named, schema=changes(Random(5), 1).schema)
    tables = [{"db-name": "d", "tbl-name": "a", "accept": ["column id is decimal(9,1), not bigint"]}]
    found = {}
    for options in (tables, [{**tables[0], "accept": [], "preserve": True}], []):
        accepted = rendered.find_accepted(TargetSection.model_validate({"tables": options}), [("d", "a"), ("d", "b")])
        renderer = Renderer(WINDOW, definitions(), "mariadb", BatchLimits(), plain=False, accepted=accepted)
        found[accepted] = [batch.verify_sql for batches in renderer(0, table) for batch in batches]
    assert list(found) == [frozenset({("d", "a")}), frozenset()]
    ranged, listed = ([" BETWEEN " in sql for sql in found[accepted]] for accepted in reversed(found))
    assert all(ranged)
    assert not any(listed)
