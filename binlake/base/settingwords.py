"""The problems that pydantic finds in settings, in words for the person who wrote the file.

Rule: no word of pydantic's own reaches a user. A value is not shown, since it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_FIXED = {
    "missing": "it is missing",
    "bool_type": "it must be true or false",
    "bool_parsing": "it must be true or false",
    "string_type": 'it must be text, in quotes: "…"',
    "tuple_type": "it must be a list: [ … ]",
    "list_type": "it must be a list: [ … ]",
    "dict_type": "it must be a section",
    "model_type": "it must be a section",
    "model_attributes_type": "it must be a section",
    "path_type": 'it must be a path, in quotes: "…"',
    "finite_number": "it must be a finite number",
}
_LIMITS = {
    "greater_than": ("gt", "it must be more than {}"),
    "greater_than_equal": ("ge", "it must be at least {}"),
    "less_than": ("lt", "it must be less than {}"),
    "less_than_equal": ("le", "it must be at most {}"),
    "string_too_long": ("max_length", "it must have at most {} characters"),
    "string_too_short": ("min_length", "it must have at least {} characters"),
    "too_long": ("max_length", "it must have at most {} items"),
    "too_short": ("min_length", "it must have at least {} items"),
    "literal_error": ("expected", "it must be {}"),
}
FORMS: Mapping[str, str] = {
    r"^[0-9]*$": "digits only",
    r"^(https?://\S+)?$": "a URL that begins with http:// or https://",
    r"^(airflow:[A-Za-z0-9_.\-]+)?$": "`airflow:` and the id of an Airflow connection",
    r"^(-1|[0-9]{1,20})$": "a commit_ts, or -1",
    r"^[1-9][0-9]{0,19}$": "a commit_ts above 0",
    r"^(0|[1-9][0-9]{0,19})?$": "a commit_ts",
    r"^[a-z][a-z0-9_-]{0,62}$": "a small letter, then at most 62 small letters, digits, `_` and `-`",
    r"^[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*$": "letters and digits, in parts joined by single `-`",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$": "a letter or digit, then at most 63 letters, digits, `_`, `.` and `-`",
    r"^[A-Za-z0-9_.-]{1,64}$": "1 to 64 letters, digits, `_`, `.` and `-`",
    r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$": "a dotted path such as `package.module.Name`",
    "^(debug|info|warn|warning|error|fatal)$": "debug, info, warn, error or fatal",
}
"""What each pattern of a setting allows; a test compares it with the patterns of all models."""
_ALTERNATIVE = re.compile(r"(constrained-|literal\[|tuple\[|list\[|function-|nullable|lax-|(int|float|str|bool)$)")


def describe_problem(problem: Mapping[str, Any]) -> str:
    """What is wrong with one setting, and what is allowed."""
    kind, context = str(problem["type"]), problem.get("ctx") or {}
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return words.format(context[name])
    if kind.startswith("int_"):
        return "it must be a whole number"
    if kind.startswith("float_"):
        return "it must be a number"
    if kind == "string_pattern_mismatch":
        return f"it must be {FORMS.get(context['pattern'], 'of the form ' + context['pattern'])}"
    return str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")


def find_key(problem: Mapping[str, Any]) -> tuple[int | str, ...]:
    """The setting's place in the file, without the alternative of a type that pydantic tried."""
    place = tuple(problem["loc"])
    while place and isinstance(place[-1], str) and _ALTERNATIVE.match(place[-1]):
        place = place[:-1]
    return place


def describe_key(problems: Sequence[Mapping[str, Any]], key: tuple[int | str, ...]) -> str:
    """All that `problems` say about the setting `key`: a value may be one of several kinds."""
    texts = dict.fromkeys(describe_problem(one) for one in problems if find_key(one) == key)
    first, *others = texts
    return " or ".join([first, *(text.removeprefix("it must be ") for text in others)])
