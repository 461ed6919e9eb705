"""Reads one TOML file into a model: one clear error names the file, the key and what is allowed. Writes one whole."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from binlake.base.settingwords import describe_key, find_key
from binlake.base.tomltext import to_toml
from binlake.errors import ConfigError

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
