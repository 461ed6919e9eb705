"""Redacts values of rows in errors and logs, unless `show-row-values` is set.

More people and systems read a task's log than may read the data. A value is shown as its length, a key as a mark that
is the same wherever the key is shown; the lake holds both in the clear.
"""

from __future__ import annotations

import hashlib
import re

MARK_DIGITS = 12
"""Hex digits of SHA-256 in the mark of a key."""
SEE_VALUES = (
    "values of rows are not logged: `binlake audit transaction COMMIT_TS` and the lake's table `statement` have them,"
    " or set show-row-values = true"
)
_state = {"shown": False}
_ROW_VERBS = ("insert", "replace", "update", "delete", "select", "with", "load")
_LITERALS = re.compile(
    r"(`(?:[^`]|``)*`|/\*.*?\*/)|(?:\b[xXbBnN]|_\w+\s*)?(?:'(?:[^'\\]|\\.|'')*'?|\"(?:[^\"\\]|\\.|\"\")*\"?)"
    r"|\b0[xX][0-9A-Fa-f]+"
    r"|(?<![\w`@])-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?",
    re.DOTALL,
)
# Greedy: a value may itself contain the words that follow.
_TOLD_VALUES = tuple(
    re.compile(f"({before})'.*'(?={behind})", re.DOTALL | re.IGNORECASE)
    for before, behind in (
        ("Duplicate entry ", " for key "),
        (r"incorrect [\w ]*value: ", " for column | for function |$"),
        ("near ", r" at line \d+$"),
        ("out of range in ", "$"),
    )
)


def show_row_values(shown: bool) -> None:
    """Whether this process shows them."""
    _state["shown"] = shown


def are_row_values_shown() -> bool:
    """The last setting of `show_row_values`; initially False."""
    return _state["shown"]


def value_in_log(value: object) -> str:
    """A value of a row in an error's text."""
    text = str(value)
    return repr(text[:60]) if _state["shown"] else f"<{len(text)} characters>"


def key_in_log(key: str) -> str:
    """A row's key in an error's text."""
    return key if _state["shown"] else f"#{hashlib.sha256(key.encode()).hexdigest()[:MARK_DIGITS]}"


def sql_in_log(sql: str) -> str:
    """A statement in an error's text: one about rows is shown without values."""
    return condition_in_log(sql) if is_about_rows(sql) else sql


def condition_in_log(sql: str) -> str:
    """The same for a part of such a statement."""
    return sql if _state["shown"] else _LITERALS.sub(lambda match: match[1] or "?", sql)


def is_about_rows(sql: str) -> bool:
    """True where constants of a statement are values of rows; those of DDL are definitions."""
    return sql.lstrip(" \t\r\n(").lower().startswith(_ROW_VERBS)


def server_text_in_log(text: str, sql: str) -> str:
    """A server's error text about a statement on rows, without the values that it quotes."""
    if _state["shown"] or not is_about_rows(sql):
        return text
    for pattern in _TOLD_VALUES:
        text = pattern.sub(lambda match: f"{match[1]}'?'", text)
    return text
