"""A copy of a table's log on this machine's disk: the last checkpoint and the commits after it.

Rule: the files of a log never change, so a copy is as good as the log up to its version. It is for this process, and
deleted at its end.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from binlake.errors import LostRange
from binlake.lake.objects import find_object, list_objects, put_object, read_object

_THREADS = 8
_MOST_COMMITS = 256
_LOG = "_delta_log"
_LAST = f"{_LOG}/_last_checkpoint"
_FILE = re.compile(r"_delta_log/(\d{20})\.(json|checkpoint\.parquet)")
_PREFIX = "binlake-log-"


LogFiles: TypeAlias = Mapping[str, tuple[int, str]]
"""Files of a log by name: the version, and `json` or `checkpoint.parquet`."""


class LogCopy:
    """The copy in `folder` of the log of the table at `path`."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path, self._folder, self._pid = path, folder, os.getpid()
        self._table = DeltaTable(str(folder))
        self._since = self.version
        self._texts: dict[int, bytes] = {}
        weakref.finalize(self, _delete_own, folder, self._pid)

    @classmethod
    def fetch(cls, path: str, listed: LogFiles | None = None) -> LogCopy:
        """Copy the log of the table at `path`: two requests without the list of its files, and one for each file.

        Raises TableNotFoundError, LostRange, BinlakeError.
        """
        if listed is None:
            last = find_object(path, _LAST)
            listed = list_log(path, -1 if last is None else json.loads(last)["version"])
        files = listed
        checkpoint = max((version for version, kind in files.values() if kind != "json"), default=-1)
        if not files:
            raise TableNotFoundError(path)
        wanted = [name for name, (version, kind) in files.items()
                  if version > checkpoint or (version == checkpoint and kind != "json")]  # fmt: skip
        _require_all(path, checkpoint, (files[name][0] for name in wanted))
        folder = Path(tempfile.mkdtemp(dir=_find_folder()))
        (folder / _LOG).mkdir()
        with ThreadPoolExecutor(_THREADS) as pool:
            for name, content in zip(wanted, pool.map(lambda one: read_object(path, one), wanted), strict=True):
                (folder / name).write_bytes(content)
        return cls(path, folder)

    @property
    def version(self) -> int:
        """The version of the copy."""
        return int(self._table.version())

    @property
    def is_long(self) -> bool:
        """Whether it has so many commits after its checkpoint that a new copy is better than to follow further."""
        return self.version - self._since > _MOST_COMMITS

    @property
    def is_own(self) -> bool:
        """Whether this process made it, not one that this one was forked from, which may delete it."""
        return self._pid == os.getpid()

    def keep(self, version: int, text: bytes) -> None:
        """Keep the commit of `version`, so that it is not read again."""
        self._texts[version] = text

    def follow(self, version: int) -> DeltaTable:
        """The copy at `version`. Commits that were not kept are read. Raises BinlakeError."""
        if self.version < version:
            for number in range(self.version + 1, version + 1):
                text = self._texts.pop(number, None)
                content = read_object(self._path, name_commit(number)) if text is None else text
                (self._folder / name_commit(number)).write_bytes(content)
            self._texts.clear()
            self._table.update_incremental()
        return self._table

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the copy's version to the table's log, in two requests."""
        self._table.create_checkpoint()
        version = self.version
        name = f"{_LOG}/{version:020}.checkpoint.parquet"
        put_object(self._path, name, (self._folder / name).read_bytes())
        put_object(self._path, _LAST, (self._folder / _LAST).read_bytes())
        self._since = version
        for file in (self._folder / _LOG).iterdir():
            found = _FILE.fullmatch(f"{_LOG}/{file.name}")
            if found and int(found[1]) < version:
                file.unlink()


def list_log(path: str, since: int) -> LogFiles:
    """The files of the log of the table at `path` from the version `since` on: one request. Raises BinlakeError."""
    names = list_objects(path, _LOG, f"{_LOG}/{max(since, 0):020}")
    return {name: (int(found[1]), found[2]) for name in names if (found := _FILE.fullmatch(name))}


def name_commit(version: int) -> str:
    """The file of the commit of `version`, below the table's folder."""
    return f"{_LOG}/{version:020}.json"


def is_whole(files: LogFiles) -> bool:
    """Whether `files` have a checkpoint, or the first commit."""
    return any(kind != "json" or version == 0 for version, kind in files.values())


def _require_all(path: str, checkpoint: int, versions: Iterable[int]) -> None:
    """Require all commits after the checkpoint, or from the first one. Raises LostRange."""
    found = sorted({*versions, checkpoint})
    missing = next((version for version in range(checkpoint, found[-1]) if version not in found), None)
    if missing is not None:
        raise LostRange(
            f"a file of the log of the lake's table `{path.rsplit('/', 1)[-1]}` is missing",
            where={"file": f"{path}/{name_commit(missing)}"},
            hint="restore it from a copy",
        )


_lock = threading.Lock()
_folders: dict[int, Path] = {}


def _find_folder() -> Path:
    """The folder for this process's copies; those of processes that have ended are deleted."""
    with _lock:
        pid = os.getpid()
        if pid not in _folders:
            _delete_left()
            _folders[pid] = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-"))
            atexit.register(_delete_own, _folders[pid], pid)
        return _folders[pid]


def _delete_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _delete_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        process = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
