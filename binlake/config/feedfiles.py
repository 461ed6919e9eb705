"""Feeds as files: `feeds/REPLICATION/ID.toml` beside the replication's file, one feed each, as a section `[[feed]]`.

`binlake changefeed` writes them. Rule: a feed has one place; two of one name are an error that says where both are. The
files may hold passwords, so only their owner reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from binlake.base.tomlfile import read_toml, readable_error
from binlake.base.tomltext import to_toml
from binlake.config.feed import Feed
from binlake.config.model import Replication
from binlake.errors import ConfigError

FOLDER = "feeds"
_MODE = 0o600


def feed_file(replication_file: Path, replication: str, feed: str) -> Path:
    """Where the file of `feed` is."""
    return replication_file.parent / FOLDER / replication / f"{feed}.toml"


def feed_files(replication_file: Path, replication: str) -> list[Path]:
    """The files of all feeds that are not in the replication's own file."""
    return sorted((replication_file.parent / FOLDER / replication).glob("*.toml"))


def merge_feed_files(replication: Replication, replication_file: Path) -> Replication:
    """`replication` with the feeds of its folder behind those of its own file. Raises ConfigError."""
    found = list(_read_feeds(replication_file, replication.name))
    if not found:
        return replication
    own = {feed.name for feed in replication.feed}
    for path, feed in found:
        if feed.name in own:
            raise ConfigError(
                "a feed is defined twice",
                where={"feed": feed.name, "file": replication_file, "and": path},
                hint="take it out of one of the two files",
            )
    return replication.model_copy(update={"feed": (*replication.feed, *(feed for _, feed in found))})


def read_feed_file(path: Path) -> Feed:
    """The feed of one file. Raises ConfigError."""
    try:
        feed = Feed.model_validate(read_toml(path))
    except ValidationError as error:
        raise readable_error(error, Feed, path) from None
    except OSError as error:
        raise ConfigError(
            f"a feed's file cannot be read: {error.strerror}",
            where={"file": path},
            hint="only its owner may read it: run as the user who created the feed, or give it to the one who runs",
        ) from None
    if feed.name != path.stem:
        raise ConfigError(
            "a feed's file is called otherwise than the feed", where={"file": path, "name": feed.name},
            hint=f"call it {feed.name}.toml",
        )  # fmt: skip
    return feed


def write_feed_file(path: Path, feed: Feed) -> None:
    """Write it whole or not at all, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}")
    shown = feed.model_dump(mode="json", by_alias=True, exclude_unset=True)
    with os.fdopen(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8") as out:
        out.write(to_toml(shown))
        out.flush()
        os.fsync(out.fileno())
    # A umask takes rights away only; a file that was there keeps its own.
    whole.chmod(_MODE)
    whole.replace(path)


def _read_feeds(replication_file: Path, replication: str) -> Iterator[tuple[Path, Feed]]:
    for path in feed_files(replication_file, replication):
        yield path, read_feed_file(path)
