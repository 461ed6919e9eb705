"""Values at MODIFY COLUMN, as TiDB converts them. `casts.jsonl`: values that captures recorded before and after, by the
types of the column and the time zone of the session."""

from __future__ import annotations

import json
from datetime import UTC, date, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.tidb_json import column

from binlake.rows.codec.casts import CastMoment, UnknownCast, cast_text
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession, read_zone

RECORDED = [
    json.loads(line) for line in (Path(__file__).parents[2] / "fixtures" / "casts.jsonl").read_text().splitlines()
]
IN_UTC = CastMoment(UTC)


def typed(kind: dict[str, Any]) -> ColumnInfo:
    raw = column(1, "v", kind["Tp"])
    return ColumnInfo.from_json({**raw, "type": {**raw["type"], **kind, "Elems": kind.get("Elems")}})


def info(tp: int, **more: Any) -> ColumnInfo:
    return ColumnInfo.from_json(column(1, "v", tp, **more))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['source']['Tp']}-{case['target']['Tp']}")
def test_converted_values_equal_recorded_values(case: dict[str, Any]) -> None:
    #
    source, target = typed(case["source"]), typed(case["target"])
    moment = CastMoment(read_zone(case["zone"]), date.fromisoformat(case["day"]) if "day" in case else None)
    found = {old: cast_text(source, target, old, moment) for old, _ in case["values"]}
    assert found == {old: new for old, new in case["values"]}


DATETIME3, TIMESTAMP = info(t.DATETIME, decimal=3), info(t.TIMESTAMP)
NEW_YORK = CastMoment(ZoneInfo("America/New_York"))
TOLD = [
    # Of an hour that occurs twice, the first is taken; a zero date has no zone.
    (info(t.DATETIME), TIMESTAMP, NEW_YORK, "2021-11-07 01:30:00", "2021-11-07 05:30:00"),
    (TIMESTAMP, info(t.DATETIME), NEW_YORK, "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    (TIMESTAMP, DATETIME3, CastMoment(timezone(timedelta(hours=8))), "2020-12-31 20:00:00", "2021-01-01 04:00:00.000"),
    (info(t.DURATION, decimal=1), info(t.DURATION), IN_UTC, "-00:00:01.6", "-00:00:02"),
    (info(t.DURATION), info(t.DATETIME), CastMoment(UTC, date(2024, 2, 28)), "24:00:01", "2024-02-29 00:00:01"),
    (info(t.FLOAT), info(t.DOUBLE), IN_UTC, "0.1", "0.10000000149011612"),
    (info(t.DOUBLE), info(t.VARCHAR, flen=40), IN_UTC, "1.5e20", "150000000000000000000"),
    (info(t.VARCHAR, flen=9), info(t.TINY), IN_UTC, "1e9", "127"),
    (info(t.VARCHAR, flen=9), info(t.LONG), IN_UTC, "x", "0"),
    (info(t.VARCHAR, flen=9), info(t.YEAR), IN_UTC, "0", "2000"),
    (info(t.VARCHAR, flen=9), info(t.YEAR), IN_UTC, "0000", "0000"),
    (info(t.VARCHAR, flen=9), info(t.STRING, flen=4), IN_UTC, "ab  ", "ab"),
    (info(t.VARCHAR, flen=9), info(t.VARCHAR, flen=2), IN_UTC, "äöü", "äö"),
    (info(t.NEWDECIMAL, flen=5, decimal=2), info(t.NEWDECIMAL, flen=3, decimal=2), IN_UTC, "-123.45", "-9.99"),
    (
        info(t.NEWDECIMAL, flen=60, decimal=20),
        info(t.NEWDECIMAL, flen=65, decimal=19),
        IN_UTC,
        f"{'9' * 40}.{'9' * 20}",
        f"1{'0' * 40}.{'0' * 19}",
    ),
    (info(t.DOUBLE), info(t.DOUBLE, decimal=1), IN_UTC, "0.25", "0.2"),
    (info(t.LONG), info(t.JSON), IN_UTC, "-7", "-7"),
    (info(t.LONGLONG, flag=t.FLAG_UNSIGNED), info(t.JSON), IN_UTC, "18446744073709551615", "18446744073709551615"),
    (info(t.YEAR), info(t.JSON), IN_UTC, "2020", "2020"),
    (info(t.NEWDECIMAL, flen=9, decimal=2), info(t.JSON), IN_UTC, "2.50", "2.5"),
    (info(t.FLOAT), info(t.JSON), IN_UTC, "0.1", "0.10000000149011612"),
    (info(t.VARCHAR, flen=90), info(t.JSON), IN_UTC, '[1,2.50, {"b":1,"a":2}]', '[1, 2.5, {"a": 2, "b": 1}]'),
    (info(t.ENUM, elems=("[1]", "2")), info(t.JSON), IN_UTC, "[1]", "[1]"),
    (info(t.JSON), info(t.VARCHAR, flen=40), IN_UTC, '{"b": 1, "aa": 2}', '{"aa": 2, "b": 1}'),
    (info(t.STRING, flen=9), info(t.STRING, flen=3), IN_UTC, "ab cd", "ab"),
    (info(t.BLOB, flen=65535), info(t.TINYBLOB, flen=3), IN_UTC, "abcd", "abc"),
    (info(t.VARCHAR, flen=30), info(t.DATETIME), IN_UTC, "abc", "0000-00-00 00:00:00"),
]


@pytest.mark.parametrize(("source", "target", "moment", "text", "changed"), TOLD)
def test_unrecorded_conversions_follow_tidbs_source_code(
    source: ColumnInfo, target: ColumnInfo, moment: CastMoment, text: str, changed: str
) -> None:
    assert cast_text(source, target, text, moment) == changed
    assert cast_text(source, target, None, moment) is None


UNTOLD = [
    (TIMESTAMP, info(t.DATETIME), CastMoment(), "2021-01-01 00:00:00", "zone"),
    (info(t.DATETIME), TIMESTAMP, NEW_YORK, "2021-03-14 02:30:00", "does not exist in the time zone"),
    (info(t.DURATION), info(t.DATETIME), IN_UTC, "10:00:00", "day"),
    (info(t.JSON), info(t.LONG), IN_UTC, "1", "JSON"),
    (info(t.VARCHAR, flen=30), info(t.DATETIME), IN_UTC, "1. May 2021", "not a date"),
    (info(t.BLOB, charset="binary"), info(t.JSON), IN_UTC, "5B5D", "JSON"),
    (info(t.DATE), info(t.JSON), IN_UTC, "2021-01-01", "JSON"),
    (info(t.BLOB, flen=65535), info(t.TINYBLOB, flen=3), IN_UTC, "aéé", "inside a character"),
    (info(t.LONG), info(t.BIT, flen=4), IN_UTC, "16", "BIT"),
]


@pytest.mark.parametrize(("source", "target", "moment", "text", "why"), UNTOLD)
def test_unknown_conversion_raises_an_error(
    source: ColumnInfo, target: ColumnInfo, moment: CastMoment, text: str, why: str
) -> None:
    with pytest.raises(UnknownCast, match=why):
        cast_text(source, target, text, moment)


LOCATIONS = [
    ({"name": "Europe/Berlin", "offset": 0}, "Europe/Berlin"),
    ({"name": "", "offset": -12600}, "-03:30"),
    # Older servers write the name UTC together with the offset of a session.
    ({"name": "UTC", "offset": 28800}, "+08:00"),
    ({"name": "UTC", "offset": 0}, "UTC"),
    ({"name": "Local", "offset": 0}, "+02:00"),
    (None, "+02:00"),
]


@pytest.mark.parametrize(("location", "zone"), LOCATIONS)
def test_zone_comes_from_job_or_configuration(location: dict[str, Any] | None, zone: str) -> None:
    from binlake import tso
    from binlake.rows.schema import DdlJob

    at = tso.parse("2024-05-06T12:00:00")
    raw = {"id": 1, "type": 12, "state": 6, "schema_id": 1, "table_id": 2, "start_ts": at}
    job = DdlJob.from_dict({**raw, "reorg_meta": location and {"location": location}})
    found = SourceSession.of(job, at + (1000 << 18), "+02:00")
    assert (found.zone, found.day) == (zone, "2024-05-06")
    assert SourceSession.of(job, tso.parse("2024-05-07T23:00:00"), "+02:00").day == ""
    assert SourceSession.from_dict(found.to_dict()) == found


def test_session_without_zone_is_unknown() -> None:
    assert SourceSession().tz is None
    assert SourceSession("Mars/Olympus").tz is None


def test_text_read_as_latin1_is_not_converted_to_bytes() -> None:
    text, binary = info(t.VARCHAR, flen=9, charset="utf8mb4"), info(t.VARCHAR, flen=9, charset="binary")
    guessed = CastMoment(UTC, guessed=True)
    assert cast_text(text, binary, "abc", guessed) == "616263"
    assert cast_text(text, binary, "ö", IN_UTC) == "C3B6"
    with pytest.raises(UnknownCast, match="the source may hold other bytes"):
        cast_text(text, binary, "ö", guessed)
