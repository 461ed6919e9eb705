"""What a request may contain: everything else is refused before anything is read."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams
from test_pages import HOSTILE

from binlake.tso import FIRST_TS, LAST_TS, MAX_TS, parse
from binlake_airflow.pages.request import BadPageRequest, PageRequest


def build_request(**query: str) -> PageRequest:
    return PageRequest({}, QueryParams(query))


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for read in (
        PageRequest.parse_table,
        PageRequest.parse_key,
        lambda one: one.parse_moment("at"),
        lambda one: one.parse_number("first"),
    ):
        try:
            found = read(build_request(table=text, json=text, at=text, first=text))
        except BadPageRequest:
            continue
        else:
            assert found is None or isinstance(found, (int, tuple, list))


def test_key_is_a_list_of_texts_or_a_json_array() -> None:
    assert PageRequest({}, QueryParams([("key", "1"), ("key", " a ")])).parse_key() == ["1", " a "]
    assert build_request(json='["1", null, 2, true]').parse_key() == ["1", None, "2", "true"]
    assert build_request().parse_key() is None


@pytest.mark.parametrize("text", [r'["\ud800"]', r'[1, "a\udfffb"]'])
def test_unpaired_surrogate_is_refused(text: str) -> None:
    with pytest.raises(BadPageRequest, match="key"):
        build_request(json=text).parse_key()


def test_time_is_a_commit_ts_or_a_timestamp() -> None:
    # the number stays as it was typed
    assert build_request(at="470583292723200001").parse_moment("at") == 470583292723200001
    assert parse("2026-11-20T00:00:12Z") == parse("2026-11-20T09:00:12+09:00") == parse("2026-11-20 00:00:12")
    assert parse("2026-11-20T00:00:12Z") & 0x3FFFF == 0x3FFFF
    # Fractions of a millisecond are included; whatever a page shows can be requested.
    assert parse("2026-11-20T00:00:12.0009Z") == parse("2026-11-20 00:00:12.000 UTC") == parse("2026-11-20T00:00:12Z")
    assert (parse(str(FIRST_TS)), parse(str(LAST_TS)), parse("0")) == (FIRST_TS, LAST_TS, 0)
    # A date without dashes is not a commit_ts of 1970.
    for wrong in ("20261121", str(FIRST_TS - 1), str(LAST_TS + 1), str(MAX_TS + 1), "1969-12-31", "", "²", "-1"):
        with pytest.raises(ValueError, match="commit_ts"):
            parse(wrong)
