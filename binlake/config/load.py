"""Finds the files of replications and reads them: one clear error names the file, the key and what is allowed.

Each replication is one TOML file, all in one folder; a broken file never hides the others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

from binlake.common.redaction import show_row_values
from binlake.common.secrets import Field, resolve_secret
from binlake.common.tomlfile import build_readable_error, read_toml
from binlake.config.model import Replication
from binlake.config.problems import find_notifier_problems, find_problems
from binlake.config.sidefiles import NAME, lay_over, merge_ddl_choices, merge_feed_files, read_defaults
from binlake.config.sidefiles import NAME as DEFAULTS
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
    (binlake.common.redaction).
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
    """`server`, which has a user and a password, with what these name (binlake.common.secrets). Raises ConfigError."""
    fields: tuple[Field, ...] = ("user", "password")
    values: dict[str, str] = {
        field: resolve_secret(getattr(server, field), f"{key}.{field}", field, where={"file": path}, environ=environ)
        for field in fields
    }
    return server.model_copy(update=values)


FOLDER_ENV = "BINLAKE_REPLICATIONS"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ReplicationFolder:
    """The replications of a folder: the valid ones (`good`) by file, and the errors of the other files."""

    good: Mapping[Path, Replication]
    broken: Mapping[Path, ConfigError]


def find_replications_folder() -> Path:
    """The folder in `BINLAKE_REPLICATIONS`, else that of the checkout, else the one beside Airflow's files."""
    if named := os.environ.get(FOLDER_ENV):
        return Path(named)
    if (_REPOSITORY / "pyproject.toml").exists():
        return _REPOSITORY / "replications"
    return Path(os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow") / "replications"


def find_replications(folder: Path | None = None) -> ReplicationFolder:
    """Read every `*.toml` of `folder`, without secrets. If two files have one replication name, both are errors.

    Defaults that cannot be read are an error too, and then of all files.
    """
    good: dict[Path, Replication] = {}
    broken: dict[Path, ConfigError] = {}
    folder = folder or find_replications_folder()
    files = [path for path in sorted(folder.glob("*.toml")) if path.name != DEFAULTS]
    try:
        defaults = read_defaults(folder)
    except ConfigError as error:
        return ReplicationFolder({}, dict.fromkeys([folder / DEFAULTS, *files], error))
    for path in files:
        try:
            good[path] = load_replication(path, secrets=False, defaults=defaults)
        except ConfigError as error:
            broken[path] = error
    for path in _find_duplicate_names(good):
        broken[path] = ConfigError(
            "another file has the same replication name", where={"file": path, "name": good[path].name}
        )
    return ReplicationFolder({path: item for path, item in good.items() if path not in broken}, broken)


def find_replication_of(name: str, folder: Path | None = None) -> ReplicationFolder:
    """The replication `name` alone, if its file has its name, as is the custom; otherwise all of the folder.

    `name` may come from a request: a file outside the folder is not read.
    """
    path = (folder or find_replications_folder()) / f"{name}.toml"
    if "\0" in name or path.name != f"{name}.toml":
        return find_replications(folder)
    try:
        replication = load_replication(path, secrets=False)
    except ConfigError:
        return find_replications(folder)
    return ReplicationFolder({path: replication}, {}) if replication.name == name else find_replications(folder)


def find_replication(name: str) -> Replication | None:
    """The replication called `name`; None if no valid file describes it."""
    return next((item for item in find_replication_of(name).good.values() if item.name == name), None)


def _find_duplicate_names(good: Mapping[Path, Replication]) -> list[Path]:
    counts = Counter(item.name for item in good.values())
    return [path for path, item in good.items() if counts[item.name] > 1]
