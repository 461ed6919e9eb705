"""Choices about single DDL as files: `ddl/REPLICATION/COMMIT_TS.toml` next to the replication's file.

`binlake ddl replace` and `binlake ddl skip` write them. Each means the same as an entry of `[[ddl-replacement]]` or of
`filter.ignore-txn-commit-ts`. Rule: there is one choice about a DDL; two are an error that names both places.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from binlake.base.sections import DdlReplacement, Section, TsText
from binlake.base.tomlfile import build_readable_error, read_toml, write_toml
from binlake.config.model import Replication
from binlake.errors import ConfigError

FOLDER = "ddl"


class DdlChoice(Section):
    """What the target does instead of the DDL at `commit_ts`: run `sql`, or nothing if it is empty."""

    commit_ts: TsText = Field(description="commit_ts of the DDL")
    sql: str = Field("", description="the statement that replaces it; empty = it is left out")
    reason: str = Field("", description="why, for people")


def build_choice_path(replication_file: Path, replication: str, commit_ts: int) -> Path:
    """The path of the choice about one DDL."""
    return replication_file.parent / FOLDER / replication / f"{commit_ts}.toml"


def merge_ddl_choices(replication: Replication, replication_file: Path) -> Replication:
    """`replication` with the choices of its folder added to those of its own file. Raises ConfigError."""
    files = sorted((replication_file.parent / FOLDER / replication.name).glob("*.toml"))
    if not files:
        return replication
    own = {entry.commit_ts for entry in replication.ddl_replacement} | set(replication.filter.ignore_txn_commit_ts)
    choices = [_read_choice(file) for file in files]
    for file, choice in zip(files, choices, strict=True):
        if choice.commit_ts in own:
            raise ConfigError(
                "there are two choices about a DDL",
                where={"commit_ts": choice.commit_ts, "file": replication_file, "and": file},
                hint="remove one of the two",
            )
    replaced = [DdlReplacement(commit_ts=one.commit_ts, sql=one.sql) for one in choices if one.sql]
    left_out = [one.commit_ts for one in choices if not one.sql]
    lists = replication.filter.model_copy(
        update={"ignore_txn_commit_ts": (*replication.filter.ignore_txn_commit_ts, *left_out)}
    )
    return replication.model_copy(
        update={"ddl_replacement": (*replication.ddl_replacement, *replaced), "filter": lists}
    )


def write_choice(path: Path, choice: DdlChoice) -> None:
    """Write a choice atomically. Raises ConfigError if the folder cannot be written, with what to do instead."""
    try:
        write_toml(path, choice.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    except OSError as error:
        way = "[[ddl-replacement]]" if choice.sql else "filter.ignore-txn-commit-ts"
        raise ConfigError(
            f"the choice cannot be written beside the replication's file: {error.strerror}",
            where={"file": path},
            hint=f"add it to {way} of the replication's file",
        ) from None


def _read_choice(path: Path) -> DdlChoice:
    try:
        choice = DdlChoice.model_validate(read_toml(path))
    except ValidationError as error:
        raise build_readable_error(error, DdlChoice, path) from None
    except OSError as error:
        raise ConfigError(f"a choice about a DDL cannot be read: {error.strerror}", where={"file": path}) from None
    if choice.commit_ts != path.stem:
        raise ConfigError(
            "a choice's file does not have the name of its DDL", where={"file": path, "commit_ts": choice.commit_ts},
            hint=f"call it {choice.commit_ts}.toml",
        )  # fmt: skip
    return choice
