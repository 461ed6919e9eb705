"""Net changes compared with the known table of combinations and with serial execution (invariant 6)."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from binlake.changes.net import NetChange, RowEvent, compute_net_changes, encode_row_key
from binlake.errors import SchemaError
from binlake.rows.schema import RowIdentity

KEY = RowIdentity("primary", ("id",))
WHOLE = RowIdentity("row", ("id", "u", "w"))

Row = dict[str, str | None]


def row(key: int, u: str | None = None, w: str | None = None) -> Row:
    return {"id": str(key), "u": u, "w": w}


def event(place: int, before: Row | None, after: Row | None) -> RowEvent:
    op = "insert" if before is None else "delete" if after is None else "update"
    return RowEvent(place, place - 1, 0, op, before, after)


def net(identity: RowIdentity, *pairs: tuple[Row | None, Row | None]) -> list[NetChange]:
    return compute_net_changes([event(n, before, after) for n, (before, after) in enumerate(pairs, 1)], identity)


def summary(changes: list[NetChange]) -> set[tuple[str, str, str | None]]:
    return {(c.op, c.key, None if c.after is None else c.after["u"]) for c in changes}


A, B, C = row(1, "a"), row(1, "b"), row(1, "c")


# S4-09, data-migration 1.3, 6.1, 6.2: the net change of two changes of one key
@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(None, A), (A, B)], ("replace", None, B)),
        # stays a delete, because a replay may find the row
        ([(None, A), (A, None)], ("delete", A, None)),
        ([(A, B), (B, C)], ("replace", None, C)),
        ([(A, B), (B, None)], ("delete", A, None)),
        ([(A, None), (None, B)], ("replace", None, B)),
        ([(A, None), (None, B), (B, C)], ("replace", None, C)),
        ([(A, None), (None, B), (B, None)], ("delete", A, None)),
    ],
)
def test_combinations_of_one_key(
    pairs: list[tuple[Row | None, Row | None]], expected: tuple[str, Row | None, Row | None]
) -> None:
    (change,) = net(KEY, *pairs)
    assert (change.op, change.before, change.after) == expected
    assert (change.mutations, change.first_commit_ts, change.last_commit_ts) == (len(pairs), 1, len(pairs))


CAME, STAYED, WENT = (None, A), (A, A), (A, None)


@pytest.mark.parametrize(("first", "second"), list(itertools.product([CAME, STAYED, WENT], repeat=2)))
def test_impossible_pair_error_names_key_and_commit_ts(
    first: tuple[Row | None, Row | None], second: tuple[Row | None, Row | None]
) -> None:  # S4-09: all nine
    events = [event(4, *first), event(7, *second)]
    if (first[1] is None) == (second[0] is None):
        assert compute_net_changes(events, KEY, strict=True) == compute_net_changes(events, KEY)
        return
    with pytest.raises(SchemaError, match="key=#43de3a417d75 first_commit_ts=4 last_commit_ts=7") as caught:
        compute_net_changes(events, KEY, strict=True)
    assert "impossible-changes" in caught.value.hint
    # if changes are left out on purpose, the last one is used
    (change,) = compute_net_changes(events, KEY)
    assert change.after == second[1]


def test_six_documented_changes_reduce_to_two() -> None:
    # S4-08, S0-21: six statements in mode ordered (tests/ordered), two net changes here
    pairs = [
        (None, A),
        (None, row(2, "b")),
        (A, C),
        (row(2, "b"), row(2, "d")),
        (row(2, "d"), None),
        (None, row(2, "c")),
    ]
    assert summary(net(KEY, *pairs)) == {("replace", '["1"]', "c"), ("replace", '["2"]', "c")}


def test_key_update_deletes_one_key_and_writes_another() -> None:  # S4-10
    assert summary(net(KEY, (row(1, "a"), row(3, "c")))) == {("delete", '["1"]', None), ("replace", '["3"]', "c")}


def test_key_that_moves_away_and_back_is_written() -> None:  # S4-10
    changes = net(KEY, (row(1, "a"), row(2, "a")), (row(2, "a"), row(1, "a")))
    assert summary(changes) == {("delete", '["2"]', None), ("replace", '["1"]', "a")}


def test_vectors_of_the_compactor() -> None:
    # data-migration 6.1 case B: I1 I2 U(1->3) D2 I1 I2 U2
    changes = net(
        KEY,
        (None, row(1, "a")),
        (None, row(2, "b")),
        (row(1, "a"), row(3, "c")),
        (row(2, "b"), None),
        (None, row(1, "a")),
        (None, row(2, "b")),
        (row(2, "b"), row(2, "c")),
    )
    assert summary(changes) == {("replace", '["1"]', "a"), ("replace", '["2"]', "c"), ("replace", '["3"]', "c")}


def test_vectors_of_the_compactor_after_a_clean_start() -> None:
    # data-migration 6.1 case A: I1 I2 U(1->3) D2 I1; rows that existed before are deleted, never left out
    history = [(None, row(1, "a")), (None, row(2, "b")), (row(1, "a"), row(3, "c")), (row(2, "b"), None)]
    changes = net(KEY, *history, (None, row(1, "a")))
    assert summary(changes) == {("delete", '["2"]', None), ("replace", '["1"]', "a"), ("replace", '["3"]', "c")}


def replayed(seed: int, changes: int, ids: int, batch: int) -> None:
    """data-migration 6.1 case C: batches of random changes, replayed one by one and as net changes.

    One of ten updates changes its key.
    """
    draw, source, target = random.Random(seed), dict[str, Row](), dict[str, Row]()
    for first in range(0, changes, batch):
        events = []
        for place in range(first + 1, first + batch + 1):
            key = draw.randrange(ids)
            before, after = source.pop(str(key), None), row(key, str(place))
            if before is not None and draw.random() < 0.3:
                events.append(event(place, before, None))
                continue
            if before is not None and draw.random() < 0.1:
                free = draw.randrange(ids)
                after = row(key if str(free) in source else free, str(place))
            source[str(after["id"])] = after
            events.append(event(place, before, after))
        for change in compute_net_changes(events, KEY, strict=True):
            identity = str((change.after or change.before or {})["id"])
            if change.after is None:
                target.pop(identity, None)
            else:
                target[identity] = dict(change.after)
        assert target == source, f"seed {seed}, changes up to {first + batch}"


def test_random_change_batches_equal_their_replay() -> None:
    replayed(1, 20_000, 1_000, 1_000)


@pytest.mark.soak
def test_a_million_random_changes_equal_their_replay() -> None:
    replayed(2, 1_000_000, 1_000, 1_000)


def test_order_is_by_position_and_not_by_arrival() -> None:
    events = [event(2, A, B), event(1, None, A), event(3, B, C)]
    assert compute_net_changes(events, KEY)[0].after == C


def test_rows_without_a_key_are_counted() -> None:
    # hazards R-17
    changes = net(WHOLE, (None, A), (None, A), (None, A), (A, None), (B, C), (C, B), (B, None))
    assert {(c.op, c.key, c.copies) for c in changes} == {
        ("insert", encode_row_key(A, WHOLE.columns), 2),
        ("delete", encode_row_key(B, WHOLE.columns), 1),
    }


def test_different_keys_never_have_the_same_text() -> None:
    # joined text would be ambiguous: ("a.b", "c") and ("a", "b.c"); and NULL differs from the text
    columns = ("x", "y")
    assert encode_row_key({"x": "a.b", "y": "c"}, columns) != encode_row_key({"x": "a", "y": "b.c"}, columns)
    assert encode_row_key({"x": None, "y": ""}, columns) != encode_row_key({"x": "", "y": None}, columns)


def test_event_with_wrong_images_is_refused() -> None:
    with pytest.raises(SchemaError, match="wrong images"):
        compute_net_changes([RowEvent(1, 0, 0, "delete", None, A)], KEY)


# -- against serial execution -----------------------------------------------------------------------------------

SMALL = st.integers(0, 4)
VALUE = st.one_of(st.none(), st.sampled_from("abc"))
STEP = st.tuples(st.sampled_from(("insert", "update", "delete")), SMALL, SMALL, VALUE, VALUE)
HISTORY = st.lists(STEP, max_size=30)


class Source:
    """A table (id primary, u unique, w unique) that makes only changes its keys allow, and logs them."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.events: list[RowEvent] = []

    def step(self, op: str, key: int, new: int, u: str | None, w: str | None) -> None:
        before = self.rows.get(key)
        after = None if op == "delete" else row(key if op == "insert" else new, u, w)
        if (before is None) != (op == "insert") or not self._allowed(before, after):
            return
        if before is not None:
            del self.rows[key]
        if after is not None:
            self.rows[int(after["id"] or 0)] = after
        self.events.append(event(len(self.events) + 1, before, after))

    def _allowed(self, before: Row | None, after: Row | None) -> bool:
        others = [r for r in self.rows.values() if r is not before]
        return after is None or not any(
            after[c] is not None and after[c] == other[c] for other in others for c in ("id", "u", "w")
        )


class Target:
    """The same table in SQLite, whose REPLACE removes rows like MySQL's."""

    def __init__(self, rows: dict[int, Row]) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table t (id int primary key, u text unique, w text unique)")
        self.db.executemany("insert into t values (:id, :u, :w)", [dict(r) for r in rows.values()])

    def run(self, change: NetChange) -> None:
        if change.after is None:
            self.db.execute("delete from t where id = ?", (int((change.before or {})["id"] or 0),))
        else:
            self.db.execute("insert or replace into t values (:id, :u, :w)", dict(change.after))

    def rows(self) -> dict[int, Row]:
        return {key: row(key, u, w) for key, u, w in self.db.execute("select id, u, w from t")}


def statements(events: list[RowEvent], shuffle: random.Random) -> list[NetChange]:
    changes = compute_net_changes(events, KEY, strict=True)
    shuffle.shuffle(changes)
    return sorted(changes, key=lambda change: change.op != "delete")


@settings(max_examples=examples(300), deadline=None)
@given(HISTORY, HISTORY, st.randoms(use_true_random=False), st.integers(0, 40))
def test_two_phases_in_any_order_equal_serial_execution_also_after_a_crash(
    base: list[tuple[str, int, int, str | None, str | None]],
    window: list[tuple[str, int, int, str | None, str | None]],
    shuffle: random.Random,
    crash: int,
) -> None:
    # S4-36, hazards section 0: any order inside a phase, a crash after any statement, then the same again
    source = Source()
    for step in base:
        source.step(*step)
    target, skip = Target(source.rows), len(source.events)
    for step in window:
        source.step(*step)
    for change in statements(source.events[skip:], shuffle)[:crash]:
        target.run(change)
    for _ in range(2):
        for change in statements(source.events[skip:], shuffle):
            target.run(change)
    assert target.rows() == source.rows


def test_swapped_unique_values_survive() -> None:
    # data-migration 6.1 cases E and F, and a swap of unique values of two rows
    source = Source()
    for step in [("insert", 1, 1, "a", None), ("insert", 2, 2, "b", None)]:
        source.step(*step)
    target, skip = Target(source.rows), len(source.events)
    for step in [("update", 1, 1, None, None), ("update", 2, 2, "a", None), ("update", 1, 1, "b", None)]:
        source.step(*step)
    for seed in range(10):
        for change in statements(source.events[skip:], random.Random(seed)):
            target.run(change)
        assert target.rows() == {1: row(1, "b"), 2: row(2, "a")}


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("insert", "update", "delete")), st.randoms(use_true_random=False)), max_size=40)
)
def test_counts_of_rows_without_a_key_equal_serial_execution(steps: list[tuple[str, random.Random]]) -> None:
    images = [row(k, u) for k in (1, 2) for u in ("a", None)]
    table: list[Row] = [images[0], images[0], images[1]]
    before_window = Counter(encode_row_key(r, WHOLE.columns) for r in table)
    events: list[RowEvent] = []
    for op, chance in steps:
        if op != "insert" and not table:
            continue
        before = None if op == "insert" else table.pop(chance.randrange(len(table)))
        after = None if op == "delete" else chance.choice(images)
        table += [after] if after else []
        events.append(event(len(events) + 1, before, after))
    for change in compute_net_changes(events, WHOLE):
        before_window[change.key] += change.copies if change.op == "insert" else -change.copies
        assert before_window[change.key] >= 0
    assert +before_window == Counter(encode_row_key(r, WHOLE.columns) for r in table)


def test_rows_older_than_a_key_column_get_its_fill_value() -> None:
    widened = RowIdentity("primary", ("id", "c"))
    events = [event(1, None, row(1, "a")), event(2, {**row(1, "a"), "c": "7"}, {**row(1, "b"), "c": "7"})]
    (change,) = compute_net_changes(events, widened, {"c": "7"})
    assert (change.op, change.after, change.mutations) == ("replace", {**row(1, "b"), "c": "7"}, 2)
    # Values that an image has are never replaced.
    (moved,) = compute_net_changes([event(1, None, {**row(1), "c": "8"})], widened, {"c": "7"})
    assert moved.after == {**row(1), "c": "8"}
    with pytest.raises(KeyError):
        compute_net_changes(events, widened)
