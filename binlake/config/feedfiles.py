"""Feeds as files: `feeds/REPLICATION/ID.toml` next to the replication's file, each with the keys of a `[[feed]]`.

`binlake changefeed` writes them. Rule: a feed is defined once; two feeds with one name are an error that names both
files. The files may contain passwords, so only their owner can read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from binlake.base.tomlfile import build_readable_error, read_toml, write_toml
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.errors import ConfigError

FOLDER = "feeds"


def build_feed_path(replication_file: Path, replication: str, feed: str) -> Path:
    """The path of the file of `feed`."""
    return replication_file.parent / FOLDER / replication / f"{feed}.toml"


def list_feed_files(replication_file: Path, replication: str) -> list[Path]:
    """The files of all feeds that have their own file."""
    return sorted((replication_file.parent / FOLDER / replication).glob("*.toml"))


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
