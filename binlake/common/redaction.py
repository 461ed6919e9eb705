"""Redacts values of rows in errors and logs, unless `show-row-values` is set.

A task's log is read by more people and systems than may read the data. A value is shown as its length, and a key as a
mark that is the same wherever the key is shown; the lake holds both in plain text.
"""

from __future__ import annotations

import hashlib
import re

MARK_DIGITS = 12
"""Hex digits of SHA-256 in the mark of a key."""
SEE_VALUES = (
    "values of rows are not logged: `binlake audit transaction COMMIT_TS` has them, or set show-row-values = true"
)
_state = {"shown": False}
_ROW_VERBS = ("insert", "replace", "update", "delete", "select", "with", "load")
_LITERALS = re.compile(
    r"(`(?:[^`]|``)*`|/\*.*?\*/)|(?:\b[xXbBnN]|_\w+\s*)?(?:'(?:[^'\\]|\\.|'')*'?|\"(?:[^\"\\]|\\.|\"\")*\"?)"
    r"|\b0[xX][0-9A-Fa-f]+"
    r"|(?<![\w`@])-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?",
    re.DOTALL,
)
# Greedy: a value may itself contain the words that end it.
_QUOTED_VALUES = tuple(
    re.compile(f"({before})'.*'(?={behind})", re.DOTALL | re.IGNORECASE)
    for before, behind in (
        ("Duplicate entry ", " for key "),
        (r"incorrect [\w ]*value: ", " for column | for function |$"),
        ("near ", r" at line \d+$"),
        ("out of range in ", "$"),
    )
)


def show_row_values(shown: bool) -> None:
    """Set whether this process shows values of rows in errors and logs."""
    _state["shown"] = shown


def are_row_values_shown() -> bool:
    """The last setting of `show_row_values`; initially False."""
    return _state["shown"]


def redact_value(value: object) -> str:
    """How an error's text shows a value of a row."""
    text = str(value)
    return repr(text[:60]) if _state["shown"] else f"<{len(text)} characters>"


def redact_key(key: str) -> str:
    """How an error's text shows a row's key."""
    return key if _state["shown"] else f"#{hashlib.sha256(key.encode()).hexdigest()[:MARK_DIGITS]}"


def redact_sql(sql: str) -> str:
    """How an error's text shows a statement: without values if it is about rows."""
    return redact_condition(sql) if is_about_rows(sql) else sql


def redact_condition(sql: str) -> str:
    """How an error's text shows a part of a statement about rows."""
    return sql if _state["shown"] else _LITERALS.sub(lambda match: match[1] or "?", sql)


def is_about_rows(sql: str) -> bool:
    """True if the constants of a statement are values of rows; the constants of DDL are definitions."""
    return sql.lstrip(" \t\r\n(").lower().startswith(_ROW_VERBS)


def redact_server_text(text: str, sql: str) -> str:
    """How an error shows a server's error text about a statement on rows: without the values that it quotes."""
    if _state["shown"] or not is_about_rows(sql):
        return text
    for pattern in _QUOTED_VALUES:
        text = pattern.sub(lambda match: f"{match[1]}'?'", text)
    return text
