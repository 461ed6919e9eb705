"""How this process reaches the files of a lake: on a local disk, or below `s3://bucket/prefix`.

Rule: endpoint and region are those that the replication names; credentials are never Binlake's: the clients take them
from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, web identity) or the machine's role.
"""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs as fs
import pyarrow.parquet as pq

from binlake.lake.access import Access, find_access, is_remote

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

_RETRIES = {"max_retries": "10", "retry_timeout": "60s"}


def make_delta_options(path: str) -> dict[str, str] | None:
    """The storage options with which delta-rs opens the table at `path`; None for a local one.

    A commit is a conditional put: of two writers of one version the store refuses one (hazards R-41).
    """
    if not is_remote(path):
        return None
    access = find_access(path)
    options = {"aws_region": access.region, "aws_conditional_put": "etag", **_RETRIES}
    if access.endpoint:
        options |= {"aws_endpoint_url": access.endpoint, "aws_allow_http": str(access.is_plain).lower()}
    return options


def open_files(path: str) -> tuple[fs.FileSystem, str]:
    """Arrow's own file system for `path`, and the path in it.

    Not delta-rs's, which is written in Python: Arrow's threads must not need the interpreter's lock when it exits.
    """
    if not is_remote(path):
        return _LOCAL, path
    return _make_s3_files(find_access(path)), path.partition("://")[2]


def open_objects(path: str) -> S3Store:
    """The objects below `path`, with conditional puts."""
    from obstore.store import S3Store

    access = find_access(path)
    bucket, _, prefix = path.partition("://")[2].partition("/")
    config: S3Config = {"region": access.region}
    if access.endpoint:
        config["endpoint"] = access.endpoint
    return S3Store(bucket, prefix=prefix, config=config, client_options={"allow_http": access.is_plain})


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


@lru_cache(maxsize=64)
def _make_s3_files(access: Access) -> fs.FileSystem:
    if not access.endpoint:
        return fs.S3FileSystem(region=access.region)
    scheme, _, host = access.endpoint.rpartition("://")
    return fs.S3FileSystem(region=access.region, endpoint_override=host, scheme=scheme or "https")
