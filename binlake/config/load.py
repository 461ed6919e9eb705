"""Reads a replication's TOML: one clear error names the file, the key and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from binlake.base.redaction import show_row_values
from binlake.base.secrets import Field, resolve_secret
from binlake.base.tomlfile import build_readable_error, read_toml
from binlake.config.ddlchoices import merge_ddl_choices
from binlake.config.defaults import NAME, lay_over, read_defaults
from binlake.config.feedfiles import merge_feed_files
from binlake.config.model import Replication
from binlake.config.problems import find_notifier_problems, find_problems
from binlake.config.sinkuri import mask_sink_uri
from binlake.errors import ConfigError

log = structlog.get_logger(__name__)
Server = TypeVar("Server", bound=BaseModel)


def load_replication(
    path: str | Path,
    *,
    secrets: bool = True,
    environ: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Replication:
    """The replication described by the TOML file `path`. Raises ConfigError.

    `defaults`: what the files of its folder share, if the caller has read it.

    Named passwords of databases are read from `environ` (None: this process's); those of feeds where a feed connects.
    With `secrets` False they stay unresolved: a caller that only reads names and locations (a DAG
    file, a page) must neither need nor hold the target's password. Patterns and expressions of filters are then not
    checked either. With `secrets` True, it also sets whether errors of this process show values of rows
    (binlake.base.redaction).
    """
    path = Path(path)
    replication = _read_model(path, defaults)
    problems = find_problems(replication)
    if problems:
        raise _build_problems_error(problems, path)
    if not secrets:
        return replication
    show_row_values(replication.show_row_values)
    _require_rules(replication, path)
    if replication.relay.log_dir and replication.target is None:
        log.warning(
            "relay_without_target",
            file=str(path),
            log_dir=mask_sink_uri(replication.relay.log_dir),
            reason="no relay file is written",
        )
    return _resolve_secrets(replication, path, environ)


def check_replication(path: str | Path) -> Replication:
    """Like `load_replication` without secrets, with all checks that this machine can do. Raises ConfigError."""
    path = Path(path)
    replication = _read_model(path)
    problems = [*find_problems(replication), *find_notifier_problems(replication)]
    if problems:
        raise _build_problems_error(problems, path)
    _require_rules(replication, path)
    return replication


def _read_model(path: Path, defaults: Mapping[str, Any] | None = None) -> Replication:
    try:
        own = read_toml(path)
    except FileNotFoundError:
        raise ConfigError(
            "replication file not found", where={"file": path}, hint="see `replications/` for an example"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the replication file cannot be read: {error.strerror}", where={"file": path}, hint="name one TOML file"
        ) from None
    shared = read_defaults(path.parent) if defaults is None else defaults
    try:
        replication = Replication.model_validate(lay_over(shared, own))
    except ValidationError as error:
        readable = build_readable_error(error, Replication, path)
        if shared:
            readable.where["defaults"] = str(path.parent / NAME)
        raise readable from None
    return merge_ddl_choices(merge_feed_files(replication, path), path)


def _build_problems_error(problems: list[str], path: Path) -> ConfigError:
    return ConfigError("; ".join(problems), where={"file": path}, hint="see docs/reference/configuration.md")


def _require_rules(replication: Replication, path: Path) -> None:
    """Check patterns, events and expressions now, not in the first window. Raises ConfigError."""
    # Importing the parsers is slow, and Airflow parses a DAG file (`secrets` False) every few seconds.
    from binlake.rules import Rules

    try:
        Rules.of(replication)
        for feed in replication.feed:
            feed.require_rules()
    except ConfigError as error:
        raise ConfigError(error.message, where={"file": path, **error.where}, hint=error.hint) from None


def _resolve_secrets(replication: Replication, path: Path, environ: Mapping[str, str] | None) -> Replication:
    def unlock(key: str, server: Server) -> Server:
        return resolve_server(key, server, path, environ)

    target, sql = replication.target, replication.source.sql
    if target is not None:
        replication = replication.model_copy(update={"target": unlock("target", target)})
    if sql is not None:
        source = replication.source.model_copy(update={"sql": unlock("source.sql", sql)})
        replication = replication.model_copy(update={"source": source})
    if replication.validation.source:
        servers = tuple(unlock("validation.source", server) for server in replication.validation.source)
        validation = replication.validation.model_copy(update={"source": servers})
        replication = replication.model_copy(update={"validation": validation})
    return replication


def resolve_server(key: str, server: Server, path: Path, environ: Mapping[str, str] | None = None) -> Server:
    """`server`, which has a user and a password, with what these name (binlake.base.secrets). Raises ConfigError."""
    fields: tuple[Field, ...] = ("user", "password")
    values: dict[str, str] = {
        field: resolve_secret(getattr(server, field), f"{key}.{field}", field, where={"file": path}, environ=environ)
        for field in fields
    }
    return server.model_copy(update=values)
