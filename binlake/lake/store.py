"""How this process reaches the files of a lake: on a local disk, or in an object store.

Rule: which client options a store needs is said by `providers` alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.fs as fs
import pyarrow.parquet as pq
from deltalake import PostCommitHookProperties

from binlake.lake.access import find_access, find_provider, is_remote, locate_below

_CLEAN_EVERY = 50
"""Versions of a table in a store between two looks for the expired part of its log."""


def build_delta_options(path: str) -> dict[str, str] | None:
    """The storage options with which delta-rs opens the table at `path`; None for a local one.

    A commit is a conditional put: of two writers of one version the store refuses one (hazards R-41).
    """
    if not is_remote(path):
        return None
    access = find_access(path)
    return find_provider(path).build_delta_options(access, access.read_keys())


def choose_hooks(path: str, version: int) -> PostCommitHookProperties:
    """What delta-rs does after the commit that follows `version` of the table at `path`: checkpoints, and removing the
    old part of the log.

    For the second it lists the log, which is a request in an object store: there it does so only now and then.
    """
    looks = not is_remote(path) or (version + 1) % _CLEAN_EVERY == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if looks else False)


def open_files(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's own file system for `path`, and the path in it.

    Not delta-rs's, which is written in Python: Arrow's threads must not need the interpreter's lock when it exits.
    """
    if not is_remote(path):
        return _LOCAL, path
    access = find_access(path)
    return find_provider(path).build_files(path, access, access.read_keys()), locate_below(path)


def open_parquet(path: str) -> pq.ParquetFile:
    """The Parquet file at `path`. Raises OSError."""
    files, below = open_files(path)
    return pq.ParquetFile(below, filesystem=files)


def read_metadata(path: str) -> pq.FileMetaData:
    """What the end of the Parquet file at `path` says of its rows. Raises OSError."""
    files, below = open_files(path)
    return pq.read_metadata(below, filesystem=files)


def delete_file(path: str) -> None:
    """Delete the file at `path`, if it exists. Raises OSError."""
    files, below = open_files(path)
    if files.get_file_info(below).type != fs.FileType.NotFound:
        files.delete_file(below)


def delete_folder(path: str) -> None:
    """Delete all files below `path`. Raises OSError, except if there are none."""
    if not is_remote(path):
        if Path(path).exists():
            shutil.rmtree(path)
        return
    files, below = open_files(path)
    if files.get_file_info(fs.FileSelector(below, allow_not_found=True)):
        files.delete_dir_contents(below)


def list_folders(path: str) -> list[str]:
    """The names of the folders in `path`, sorted; [] if it does not exist."""
    files, below = open_files(path)
    found = files.get_file_info(fs.FileSelector(below, allow_not_found=True))
    return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)


_LOCAL = fs.LocalFileSystem()
