"""What a task of an audit shows to users."""

from binlake_airflow.jobs import MOST_ROWS, format_audit_markdown, shorten_lists

_TABLE = {"as_of": "9", "time": "then", "columns": ["id"], "mirror": {}}


def test_partial_table_is_shown_as_such() -> None:
    asked = {"what": "table", "table": "shop.t"}
    told = {**_TABLE, "rows": [["1"]], "inexact": "known in part: why"}
    assert "**Inexact:** known in part: why" in format_audit_markdown(asked, told, found=True)
    assert "Inexact" not in format_audit_markdown(asked, {**told, "inexact": ""}, found=True)


def test_headline_counts_the_rows_left_out() -> None:
    told = shorten_lists({**_TABLE, "rows": [["1"]] * (MOST_ROWS + 5), "inexact": ""})
    assert f"{MOST_ROWS + 5} rows as of" in format_audit_markdown(
        {"what": "table", "table": "shop.t"}, told, found=True
    )
