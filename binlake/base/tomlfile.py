"""Reads one TOML file into a model: one clear error names the file, the key and what is allowed."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from binlake.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises FileNotFoundError, ConfigError."""
    try:
        # An editor may have put a byte order mark before the text.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid TOML: {error}", where={"file": path}, hint="fix the line shown") from None


def make_readable_error(error: ValidationError, model: type[BaseModel], path: str | Path) -> ConfigError:
    """One clear error for the first problem that `model` reports: the key, and what is allowed."""
    # A misspelt key is often also a missing one: the error about the spelling says more.
    first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    hint = "see docs/reference/configuration.md"
    if first["type"] == "extra_forbidden":
        known = _list_known_keys(model, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys here: {', '.join(sorted(known))}"
        return ConfigError(f"unknown key `{key}`", where={"file": path}, hint=hint)
    about = f"`{key}`: " if key else ""
    return ConfigError(f"{about}{_explain(first)}", where={"file": path}, hint=hint)


_EXPLAINED = {
    "missing": "is required, and missing",
    "string_pattern_mismatch": "must have the form {pattern}",
    "string_too_short": "must not be empty",
    "string_type": "must be a text in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be a section with keys",
    "model_attributes_type": "must be a section with keys",
}
"""What is allowed, by the kind of a problem."""


def _explain(problem: ErrorDetails) -> str:
    explained = _EXPLAINED.get(problem["type"])
    if explained is None:
        return problem["msg"].removeprefix("Value error, ")
    return explained.format(**problem.get("ctx", {}))


def _list_known_keys(root: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for part in path:
        if isinstance(part, int):
            continue
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]
