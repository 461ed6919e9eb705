"""GTID sets against plain sets of numbers, in text and in MySQL's binary form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.errors import WireError
from binlake.mysqlbinlog.events.gtid import (
    MariaDbGtidSet,
    MySqlGtidSet,
    decode_mysql_set,
    encode_mysql_set,
    parse_gtid_set,
)
from binlake.mysqlbinlog.model import Flavor

_A = "11111111-2222-3333-4444-555555555555"
_B = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
_ORIGINS = (_A, _B, f"{_A}:blue", f"{_A}:red_1")
_GTIDS = st.lists(st.tuples(st.sampled_from(_ORIGINS), st.integers(1, 12)), max_size=30)


def _set_of(gtids: list[tuple[str, int]]) -> MySqlGtidSet:
    done = MySqlGtidSet()
    for origin, number in gtids:
        done.add(f"{origin}:{number}")
    return done


@given(_GTIDS, _GTIDS)
def test_set_contains_what_was_added(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    first_set, other = _set_of(first), _set_of(second)
    for origin in _ORIGINS:
        for number in range(1, 13):
            assert first_set.contains(f"{origin}:{number}") == ((origin, number) in first)
    assert first_set.contains_set(other) == (set(second) <= set(first))
    assert (
        MySqlGtidSet.parse(first_set.find_missing(other)).format_text()
        == _set_of(sorted(set(second) - set(first))).format_text()
    )
    assert first_set.format_text() == _set_of(sorted(first, reverse=True)).format_text()


@given(_GTIDS)
def test_text_and_binary_form_are_read_back(gtids: list[tuple[str, int]]) -> None:
    done = _set_of(gtids)
    assert MySqlGtidSet.parse(done.format_text()).format_text() == done.format_text()
    assert decode_mysql_set(encode_mysql_set(done)).format_text() == done.format_text()


def test_copy_is_independent() -> None:
    for flavor, first, second in ((Flavor.MYSQL, f"{_A}:1", f"{_A}:2"), (Flavor.MARIADB, "0-1-1", "0-1-2")):
        done = parse_gtid_set(flavor, first)
        other = done.copy()
        other.add(second)
        assert (done.contains(second), other.contains(second)) == (False, True)


def test_all_forms_of_mysql_text_are_parsed() -> None:
    text = f"{_A.upper()}:1-3:5:Blue:7 ,\n{_B}:2, {_A}:4"
    assert parse_gtid_set(Flavor.MYSQL, text).format_text() == f"{_A}:1-5,{_A}:blue:7,{_B}:2"
    assert parse_gtid_set(Flavor.MYSQL, "").format_text() == ""


def test_mariadb_has_one_gtid_per_domain() -> None:
    done = MariaDbGtidSet.parse("1-2-5, 0-1-17")
    assert done.format_text() == "0-1-17,1-2-5"
    assert [done.contains(gtid) for gtid in ("0-1-17", "0-9-3", "0-1-18", "2-1-1")] == [True, True, False, False]
    done.add("0-9-12")  # another server of the domain, with a lower number, since the log's order decides
    assert done.format_text() == "0-9-12,1-2-5"
    assert done.contains_set(MariaDbGtidSet.parse("0-1-12"))
    assert not done.contains_set(MariaDbGtidSet.parse("2-1-1"))


@pytest.mark.parametrize(
    ("flavor", "text"),
    [
        (Flavor.MYSQL, "1-2-3"),
        (Flavor.MYSQL, _A),
        (Flavor.MYSQL, f"{_A}:0-3"),
        (Flavor.MYSQL, f"{_A}:5-3"),
        (Flavor.MYSQL, f"{_A}:1-b"),
        (Flavor.MARIADB, f"{_A}:1"),
        (Flavor.MARIADB, "0-1"),
    ],
)
def test_text_that_is_not_a_gtid_set_is_refused(flavor: Flavor, text: str) -> None:
    with pytest.raises(WireError, match="GTID"):
        parse_gtid_set(flavor, text)


def test_sets_of_two_families_are_not_compared() -> None:
    with pytest.raises(WireError):
        MySqlGtidSet().contains_set(MariaDbGtidSet())
    with pytest.raises(WireError):
        MariaDbGtidSet().contains_set(MySqlGtidSet())
