"""TOML files: read into a model, with clear errors; and written whole.

An error names the file, the key and what is allowed. Rule: no word of pydantic's own reaches a user, and a value is not
shown, since it may be a password. The few kinds of values in Binlake's own files are written so that tomllib reads the
same values back.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from binlake.errors import ConfigError

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


def to_toml(values: Mapping[str, Any]) -> str:
    """`values` as TOML: text, numbers, booleans, lists and tables of them; None is left out."""
    lines = [f"{_format_key(name)} = {_format_value(value)}" for name, value in values.items() if value is not None]
    return "".join(f"{line}\n" for line in lines)


def to_toml_sections(values: Mapping[str, Any], place: str = "") -> str:
    """`values` as TOML for people: a table, and each table of a list, is a section; deeper tables are inline."""
    plain = {name: value for name, value in values.items() if not _is_section(value)}
    text = to_toml(plain)
    for name, value in values.items():
        path = f"{place}.{_format_key(name)}" if place else _format_key(name)
        if isinstance(value, Mapping):
            only_sections = value and all(map(_is_section, value.values()))
            text += ("" if only_sections else f"\n[{path}]\n") + to_toml_sections(value, path)
        elif _is_section(value):
            text += "".join(f"\n[[{path}]]\n{to_toml(one)}" for one in value)
    return text


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)
    )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        # TOML has JSON's escapes, but also needs one for DEL, which JSON leaves unescaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{_format_key(name)} = {_format_value(one)}" for name, one in value.items() if one is not None
        )
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return json.dumps(value)


def _format_key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else _format_value(name)


WITH_MARK = "utf-8-sig"
"""UTF-8, with or without the byte order mark that some editors write."""


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises FileNotFoundError, ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding=WITH_MARK))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid TOML: {error}", where={"file": path}, hint="fix the line shown") from None


def write_toml(path: Path, values: Mapping[str, Any], *, private: bool = False) -> None:
    """Write `values` atomically, in a folder that is created; `private`: only the owner may read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    mode = 0o600 if private else 0o666
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as out:
        out.write(to_toml(values))
        out.flush()
        os.fsync(out.fileno())
    if private:
        # A umask only removes permissions, and an existing file keeps its permissions.
        temporary.chmod(mode)
    temporary.replace(path)


def build_readable_error(error: ValidationError, model: type[BaseModel], path: str | Path) -> ConfigError:
    """One clear error for the first problem that `model` reports: the key, and what is allowed."""
    # A misspelt key is often also a missing one: the error about the spelling says more.
    problems = error.errors()
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    place = find_key(first)
    key = ".".join(str(part) for part in place)
    hint = "see docs/reference/configuration.md"
    if first["type"] == "extra_forbidden":
        known = _list_known_keys(model, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys here: {', '.join(sorted(known))}"
        return ConfigError(f"unknown key `{key}`", where={"file": path}, hint=hint)
    text = describe_key(problems, place)
    return ConfigError(f"`{key}`: {text}" if key else text, where={"file": path}, hint=hint)


def _list_known_keys(root: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for part in path:
        if isinstance(part, int):
            continue
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]
