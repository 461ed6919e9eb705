"""CSV as TiCDC's page shows it; the test's reader and Binlake's own read every row back, and NULL differs from text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from support.csvrows import canonical_text, split_csv
from support.examples import examples
from support.feedrows import COMMIT_TS, EVERY, ROWS, Row, columns_of, encoded, every_kind
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.config.feed import CsvSection
from binlake.config.protocols import CsvOptions
from binlake.errors import WireError
from binlake.extras.protocols.csvformat import CsvFormat
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.reading.files import decode_csv_file
from binlake.rows.schema import mysqltypes as t

EMPLOYEE = table_def(
    table_info(
        1,
        "employee",
        [
            column(1, "Id", t.LONG, flag=INT_PK),
            column(2, "LastName", t.VARCHAR, flen=20),
            column(3, "HireDate", t.DATE),
            column(4, "OfficeLocation", t.VARCHAR, flen=20),
        ],
        pk_is_handle=True,
    ),
)
BOB: Row = {"Id": "101", "LastName": "Smith", "HireDate": "2014-06-04", "OfficeLocation": "New York"}
MOVED: Row = {**BOB, "HireDate": "2015-10-08", "OfficeLocation": None}
DB = EMPLOYEE.db
WITH_TS = CsvOptions(commit_ts=True)


def lines(options: CsvOptions, op: str, old: list[Row], new: list[Row]) -> str:
    [(key, value)] = encoded(CsvFormat(options), op, old, new, EMPLOYEE)
    assert key is None
    return str(value.decode())


def test_lines_equal_the_pages_examples() -> None:
    head = f'"employee","{DB}",{COMMIT_TS}'
    assert lines(WITH_TS, INSERT, [], [BOB]) == f'"I",{head},101,"Smith","2014-06-04","New York"'
    assert lines(WITH_TS, UPDATE, [BOB], [MOVED]) == f'"U",{head},101,"Smith","2015-10-08",\\N'
    assert lines(WITH_TS, DELETE, [MOVED], []) == f'"D",{head},101,"Smith","2015-10-08",\\N'
    assert lines(CsvOptions(), INSERT, [], [BOB]) == f'"I","employee","{DB}",101,"Smith","2014-06-04","New York"'


def test_update_with_its_old_row_is_two_lines() -> None:
    options = CsvOptions(commit_ts=True, old_value=True)
    head = f'"employee","{DB}",{COMMIT_TS}'
    assert lines(options, UPDATE, [BOB], [MOVED]) == (
        f'"D",{head},true,101,"Smith","2014-06-04","New York"\r\n"I",{head},true,101,"Smith","2015-10-08",\\N'
    )
    assert lines(options, DELETE, [BOB], []) == f'"D",{head},false,101,"Smith","2014-06-04","New York"'
    assert not CsvFormat(options).splits_moves


# S0-08
@pytest.mark.long
@given(rows=ROWS)
@settings(max_examples=examples(30))
def test_another_reader_reads_every_row_unchanged(rows: list[Row]) -> None:
    columns = columns_of(EVERY)
    for op, old, new in every_kind(rows):
        for (_, value), row in zip(encoded(CsvFormat(CsvOptions()), op, old, new), new or old, strict=True):
            [line] = split_csv(value.decode())
            found = line[3:]
            shown = {n: canonical_text(one, text) for (n, one), text in zip(columns.items(), found, strict=True)}
            assert shown == row


FORMS = [
    CsvOptions(),
    CsvOptions(delimiter="|@|", quote="'", null="NULL", commit_ts=True, old_value=True, binary="hex", terminator="\n"),
    CsvOptions(quote="", delimiter="\t", commit_ts=True),
    CsvOptions(quote="", delimiter="$^", null="\\NULL", old_value=True),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "options", FORMS, ids=["default", "long delimiter and hex", "tabs without quotes", "odd delimiter without quotes"]
)
@given(rows=ROWS)
@settings(max_examples=examples(20))
def test_binlakes_reader_reads_every_form(options: CsvOptions, rows: list[Row]) -> None:
    columns = columns_of(EVERY)
    for op, old, new in every_kind(rows):
        content = b"".join(
            value + options.terminator.encode() for _, value in encoded(CsvFormat(options), op, old, new)
        )
        events = list(decode_csv_file("a/b/1/CDC1.csv", content, list(columns), options))
        assert [(event.op, event.db, event.table) for event in events] == [(op, EVERY.db, EVERY.name)] * len(rows)
        for event, row in zip(events, new or old, strict=True):
            assert event.commit_ts == (COMMIT_TS if options.commit_ts else None)
            value = event.value or {}
            assert {n: canonical_text(one, value[n], options.binary) for n, one in columns.items()} == row
        if options.old_value and op == UPDATE:
            assert [
                {n: canonical_text(c, (e.before or {})[n], options.binary) for n, c in columns.items()} for e in events
            ] == old


def test_timestamp_is_shown_in_the_feeds_zone() -> None:
    table = table_def(table_info(1, "a", [column(1, "at", t.TIMESTAMP)]))
    own = CsvFormat(replace(CsvOptions(), time_zone="+08:00"))
    [(_, value)] = encoded(own, INSERT, [], [{"at": "2026-01-01 00:00:00"}], table)
    assert value.decode().endswith('"2026-01-01 08:00:00"')


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'"I","t","d","a', "a quote is not closed"),
        (b'"I","t","d","a"x\r\n', "does not end where it should"),
        (b'"I","t"\r\n', "lacks its first values"),
        (b'"X","t","d",1\r\n', "not with I, U or D"),
        (b'"I","t","d",1,2\r\n', "2 values, but the table has 1 columns"),
    ],
)
def test_invalid_line_is_refused(content: bytes, error: str) -> None:
    with pytest.raises(WireError, match=error):
        list(decode_csv_file("a/b/1/CDC1.csv", content, ["id"], CsvOptions()))


@pytest.mark.parametrize(
    "section",
    [{"delimiter": ""}, {"delimiter": "four"}, {"delimiter": "\n"}, {"delimiter": '"'}, {"quote": "''"},
     {"quote": "\\"}, {"null": "a,b"}, {"binary-encoding-method": "octal"}, {"nul": ""}],
    ids=lambda section: "{}={!r}".format(*next(iter(section.items()))),
)  # fmt: skip
def test_form_that_could_not_be_read_again_is_refused(section: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        CsvSection.model_validate(section)
