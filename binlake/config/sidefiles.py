"""Files beside those of replications, which add to them: shared settings, feeds, and choices about single DDL.

`_defaults.toml` has settings that the replications of a folder share. A replication's file says what differs: its
sections are laid over those of the defaults key by key, and a value, also a list, replaces the default one whole.

`feeds/REPLICATION/ID.toml` has the keys of a `[[feed]]`; `binlake changefeed` writes it. A feed is defined once; two
feeds with one name are an error that names both files. The files may contain passwords, so only their owner can read
them.

`ddl/REPLICATION/COMMIT_TS.toml` means the same as an entry of `[[ddl-replacement]]` or of
`filter.ignore-txn-commit-ts`; `binlake ddl replace` and `binlake ddl skip` write it. There is one choice about a DDL;
two are an error that names both places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from binlake.common.sections import DdlReplacement, Section, TsText
from binlake.common.tomlfile import build_readable_error, read_toml, write_toml
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.errors import ConfigError

FEEDS = "feeds"


def build_feed_path(replication_file: Path, replication: str, feed: str) -> Path:
    """The path of the file of `feed`."""
    return replication_file.parent / FEEDS / replication / f"{feed}.toml"


def list_feed_files(replication_file: Path, replication: str) -> list[Path]:
    """The files of all feeds that have their own file."""
    return sorted((replication_file.parent / FEEDS / replication).glob("*.toml"))


def merge_feed_files(replication: Replication, replication_file: Path) -> Replication:
    """`replication` with the feeds of its feeds folder appended to those of its own file. Raises ConfigError."""
    feeds = list(_read_feeds(replication_file, replication.name))
    if not feeds:
        return replication
    names = {feed.name for feed in replication.feed}
    for path, feed in feeds:
        if feed.name in names:
            raise ConfigError(
                "a feed is defined twice",
                where={"feed": feed.name, "file": replication_file, "and": path},
                hint="remove it from one of the two files",
            )
    return replication.model_copy(update={"feed": (*replication.feed, *(feed for _, feed in feeds))})


def read_feed_file(path: Path) -> FeedSection:
    """Read the feed of one file. Raises ConfigError."""
    try:
        feed = FeedSection.model_validate(read_toml(path))
    except ValidationError as error:
        raise build_readable_error(error, FeedSection, path) from None
    except OSError as error:
        raise ConfigError(
            f"a feed's file cannot be read: {error.strerror}",
            where={"file": path},
            hint="only its owner may read it: run the command as the user who created the feed, or change the file's"
            " owner",
        ) from None
    if feed.name != path.stem:
        raise ConfigError(
            "a feed's file does not have the feed's name", where={"file": path, "name": feed.name},
            hint=f"call it {feed.name}.toml",
        )  # fmt: skip
    return feed


def write_feed_file(path: Path, feed: FeedSection) -> None:
    """Write the feed's file atomically, readable only by its owner."""
    write_toml(path, feed.model_dump(mode="json", by_alias=True, exclude_unset=True), private=True)


def _read_feeds(replication_file: Path, replication: str) -> Iterator[tuple[Path, FeedSection]]:
    for path in list_feed_files(replication_file, replication):
        yield path, read_feed_file(path)


DDL = "ddl"


class DdlChoice(Section):
    """What the target does instead of the DDL at `commit_ts`: run `sql`, or nothing if it is empty."""

    commit_ts: TsText = Field(description="commit_ts of the DDL")
    sql: str = Field("", description="the statement that replaces it; empty = it is left out")
    reason: str = Field("", description="why, for people")


def build_choice_path(replication_file: Path, replication: str, commit_ts: int) -> Path:
    """The path of the choice about one DDL."""
    return replication_file.parent / DDL / replication / f"{commit_ts}.toml"


def merge_ddl_choices(replication: Replication, replication_file: Path) -> Replication:
    """`replication` with the choices of its folder added to those of its own file. Raises ConfigError."""
    files = sorted((replication_file.parent / DDL / replication.name).glob("*.toml"))
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


NAME = "_defaults.toml"


def read_defaults(folder: Path) -> dict[str, Any]:
    """The shared settings of the files in `folder`; empty if it has none. Raises ConfigError."""
    path = folder / NAME
    try:
        found = read_toml(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the defaults cannot be read: {error.strerror}", where={"file": path}) from None
    if "name" in found:
        raise ConfigError(
            "defaults of all replications name one", where={"file": path}, hint="give each file its own `name`"
        )
    return found


def lay_over(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` and, of `defaults`, what it does not have."""
    both = {
        key: lay_over(defaults[key], value) for key, value in own.items() if _are_sections(defaults.get(key), value)
    }
    return {**defaults, **own, **both}


def _are_sections(default: object, own: object) -> bool:
    return isinstance(default, Mapping) and isinstance(own, Mapping)
