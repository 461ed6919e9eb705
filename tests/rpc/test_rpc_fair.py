"""What is dropped under load: an address that floods the server blocks only itself."""

from __future__ import annotations

from binlake.rpc.limits import FairQueue, choose_slot_to_free


def test_newest_slot_of_the_address_with_most_is_freed() -> None:
    places = {1: "a", 2: "b", 3: "a", 4: "a", 5: "b"}
    assert choose_slot_to_free(places, "c") == 4
    assert choose_slot_to_free(places, "b") == 4
    assert choose_slot_to_free(places, "a") is None


def test_address_with_as_many_slots_as_the_largest_displaces_no_other() -> None:
    assert choose_slot_to_free({1: "a", 2: "b"}, "b") is None


def test_lines_are_served_in_turn() -> None:
    lines: FairQueue[int] = FairQueue(10)
    for item in (1, 2, 3):
        assert lines.put("a", "/status", item) is None
    lines.put("a", "/metrics", 4)
    lines.put("b", "/status", 5)
    assert [lines.take() for _ in range(6)] == [1, 4, 5, 2, 3, None]


def test_flood_of_one_kind_leaves_room_for_another_kind_of_the_same_address() -> None:
    lines: FairQueue[int] = FairQueue(4)
    for item in range(4):
        lines.put("a", "/status", item)
    assert lines.put("a", "/status", 9) == 9
    assert lines.put("a", "/metrics", 10) == 3
    assert [lines.take(), lines.take()] == [0, 10]


def test_flood_of_many_kinds_leaves_room_for_another_address() -> None:
    lines: FairQueue[int] = FairQueue(4)
    for item in range(4):
        lines.put("a", f"/{item}", item)
    assert lines.put("a", "/new", 9) == 9
    assert lines.put("b", "/metrics", 10) in range(4)
    assert 10 in [lines.take() for _ in range(4)]
