"""Reading a replication's TOML: one clear error names the file, the key and what is allowed."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from binlake.base.redaction import show_row_values
from binlake.config.model import Replication
from binlake.config.problems import find_notifier_problems, find_problems
from binlake.errors import ConfigError

log = structlog.get_logger(__name__)


def load_replication(path: str | Path, *, secrets: bool = True) -> Replication:
    """The replication described by the TOML file `path`. Raises ConfigError.

    `secrets` False leaves `env:NAME` passwords unresolved: a caller that only reads names and places (a DAG file, a
    page) must not need, nor hold, the target's password. Patterns and expressions of filters are not read then either.
    With secrets, it also decides whether errors of this process show values of rows (binlake.base.redaction).
    """
    path = Path(path)
    replication = _read_model(path)
    found = find_problems(replication)
    if found:
        raise _problems_error(found, path)
    if not secrets:
        return replication
    show_row_values(replication.show_row_values)
    _require_rules(replication, path)
    if replication.relay.log_dir and replication.target is None:
        log.warning(
            "relay_without_target", file=str(path), log_dir=replication.relay.log_dir, reason="no relay file is written"
        )
    return _with_secrets(replication, path)


def check_replication(path: str | Path) -> Replication:
    """As `load_replication` without secrets, with all that can be judged on this machine. Raises ConfigError."""
    path = Path(path)
    replication = _read_model(path)
    found = [*find_problems(replication), *find_notifier_problems(replication)]
    if found:
        raise _problems_error(found, path)
    _require_rules(replication, path)
    return replication


def _read_model(path: Path) -> Replication:
    try:
        raw = read_toml(path)
    except FileNotFoundError:
        raise ConfigError(
            "replication file not found", where={"file": path}, hint="see `replications/` for a sample"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the replication file cannot be read: {error.strerror}", where={"file": path}, hint="name one TOML file"
        ) from None
    try:
        return Replication.model_validate(raw)
    except ValidationError as error:
        raise readable_error(error, Replication, path) from None


def _problems_error(found: list[str], path: Path) -> ConfigError:
    return ConfigError("; ".join(found), where={"file": path}, hint="see docs/reference/configuration.md")


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises FileNotFoundError, ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid TOML: {error}", where={"file": path}, hint="fix the line shown") from None


def readable_error(error: ValidationError, model: type[BaseModel], path: str | Path) -> ConfigError:
    """One clear error for the first thing that `model` refuses: the key, and what is allowed."""
    # A key with a slip of the pen is often one that is missing, too: the slip says more.
    first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"])
    hint = "see docs/reference/configuration.md"
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"known keys here: {', '.join(sorted(known))}"
        return ConfigError(f"unknown key `{key}`", where={"file": path}, hint=hint)
    return ConfigError(f"`{key}`: {first['msg']}", where={"file": path}, hint=hint)


def _known_keys(root: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for part in place:
        if isinstance(part, int):
            continue
        field = next((f for f in model.model_fields.values() if f.alias == part), None)
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _require_rules(replication: Replication, path: Path) -> None:
    """Patterns, events and expressions are read where they are written, not by the first window. Raises ConfigError."""
    # Their parsers are heavy, and a DAG file (`secrets` False) is parsed every few seconds.
    from binlake.rules import Rules

    try:
        Rules.of(replication)
        for feed in replication.feed:
            feed.require_rules()
    except ConfigError as error:
        raise ConfigError(error.message, where={"file": path, **error.where}, hint=error.hint) from None


def _with_secrets(replication: Replication, path: Path) -> Replication:
    target, sql = replication.target, replication.source.sql
    if target is not None:
        password = _resolve_secret("target.password", target.password, path)
        replication = replication.model_copy(update={"target": target.model_copy(update={"password": password})})
    if sql is not None:
        password = _resolve_secret("source.sql.password", sql.password, path)
        source = replication.source.model_copy(update={"sql": sql.model_copy(update={"password": password})})
        replication = replication.model_copy(update={"source": source})
    return replication


def _resolve_secret(key: str, text: str, path: Path) -> str:
    if not text.startswith("env:"):
        return text
    name = text[4:]
    if name not in os.environ:
        raise ConfigError(
            f"{key} names an environment variable that is not set",
            where={"file": path, "variable": name},
            hint=f"export {name}=…",
        )
    return os.environ[name]
