"""Disks: what processes see, what is on the platter, and what a power failure leaves of both.

`DiskOs` replaces the module `os` in the product's modules that write files. Files are real files on a memory file
system, each with a record of what was synced. The model is harsh: any part of the unsynced data may survive, sector by
sector and name by name; after a failed sync the cache counts as clean, and a later sync does not write it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from simulator.scheduler import Scheduler

SECTOR = 512
SMALL_SECTOR = 64  # smaller than any disk's sector, so that small records are torn too


@dataclass
class File:
    """What is on the platter of one file; `lost`: stretches that a failed sync left only in the cache."""

    synced: bytearray = field(default_factory=bytearray)
    lost: list[tuple[int, int]] = field(default_factory=list)


class Disk:
    """The disk of one machine, under `root`. Faults set its fields."""

    def __init__(self, root: Path, sector: int = SMALL_SECTOR) -> None:
        self.root = root
        self._sector = sector
        self.full = False
        self.slow_s = 0.0
        self.failing_syncs = 0
        self.torn_writes = 0
        self.level: dict[str, Any] = {}
        self._files: dict[int, File] = {}
        self._names: dict[Path, dict[str, int]] = {}
        root.mkdir(parents=True)

    def file(self, inode: int) -> File:
        """The record of what is on the platter for a file."""
        return self._files.setdefault(inode, File())

    def wrote(self, inode: int, begin: int, end: int) -> None:
        """Bytes in the cache are new; the next sync writes them."""
        platter = self.file(inode)
        platter.lost = [piece for a, b in platter.lost for piece in ((a, min(b, begin)), (max(a, end), b)) if a < b]
        platter.lost = [(a, b) for a, b in platter.lost if a < b]

    def cut(self, inode: int, size: int) -> None:
        """The file was truncated."""
        platter = self.file(inode)
        platter.lost = [(a, min(b, size)) for a, b in platter.lost if a < size]

    def sync(self, inode: int, content: bytes, *, fails: bool) -> None:
        """The dirty parts of `content` reach the platter, or, if the sync fails, do not but count as clean."""
        platter = self.file(inode)
        if fails:
            platter.lost = [*platter.lost, *_differences(platter.synced, content)]
            return
        fresh = bytearray(content)
        for a, b in platter.lost:
            old = bytes(platter.synced[a:b])
            fresh[a:b] = old + bytes(max(0, min(b, len(fresh)) - a - len(old)))
        platter.synced = fresh

    def is_synced(self, path: Path) -> bool:
        """Whether the platter has all of a file."""
        platter = self.file(path.stat().st_ino)
        return not platter.lost and bytes(platter.synced) == path.read_bytes()

    def sync_names(self, folder: Path) -> None:
        """Make the names in `folder` durable."""
        self._names[folder] = _names(folder)

    def flip(self, path: Path, random: Random) -> int:
        """Flip one bit of a file, on the platter and in the cache; return where."""
        data = bytearray(path.read_bytes())
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        with path.open("r+b") as file:
            file.write(data)
        platter = self.file(path.stat().st_ino)
        if at < len(platter.synced):
            platter.synced[at] = data[at]
        return at

    def clear(self) -> None:
        """Replace this disk by an empty one."""
        shutil.rmtree(self.root)
        self.root.mkdir()
        self.level.clear()
        self._files.clear()
        self._names.clear()

    def lose_power(self, random: Random) -> None:
        """Replace the files by what the power failure leaves."""
        for folder in [Path(folder) for folder, _, _ in os.walk(self.root)]:
            self._lose(folder, random)
        for level in self.level.values():
            level.lose_power(random)
        self.full, self.slow_s, self.failing_syncs, self.torn_writes = False, 0.0, 0, 0

    def _lose(self, folder: Path, random: Random) -> None:
        now, before = _names(folder), self._names.get(folder, {})
        left: dict[str, bytes] = {}
        for name in sorted(now.keys() | before.keys()):
            inode = now.get(name)
            if now.get(name) != before.get(name) and random.random() < 0.5:
                inode = before.get(name)
            if inode is not None:
                left[name] = self._survivor(inode, self._read_cached(folder, name, inode), random)
        for name in now:
            (folder / name).unlink()
        self._names[folder] = {}
        for name, data in left.items():
            path = folder / name
            path.write_bytes(data)
            self._files[path.stat().st_ino] = File(bytearray(data))
        self.sync_names(folder)

    def _read_cached(self, folder: Path, name: str, inode: int) -> bytes:
        path = folder / name
        if path.exists() and path.stat().st_ino == inode:
            return path.read_bytes()
        for other in folder.iterdir():
            if other.is_file() and other.stat().st_ino == inode:
                return other.read_bytes()
        return bytes(self.file(inode).synced)

    def _survivor(self, inode: int, cached: bytes, random: Random) -> bytes:
        platter = self.file(inode)
        synced = bytes(platter.synced)
        if cached == synced:
            return synced
        size = random.randint(min(len(synced), len(cached)), max(len(synced), len(cached)))
        data = bytearray(synced[:size].ljust(size, b"\0"))
        for a, b in _differences(synced, cached):
            for sector in range(a // self._sector, -(-min(b, size) // self._sector)):
                at, end = max(a, sector * self._sector), min((sector + 1) * self._sector, b, size)
                if random.random() < 0.7 and not any(x < end and at < y for x, y in platter.lost):
                    data[at:end] = cached[at:end].ljust(end - at, b"\0")
        return bytes(data)


def _differences(old: bytes | bytearray, new: bytes | bytearray) -> list[tuple[int, int]]:
    """The stretches, in whole sectors, in which `new` differs from `old`."""
    shared = min(len(old), len(new))
    found = [
        (at, min(at + SMALL_SECTOR, shared))
        for at in range(0, shared, SMALL_SECTOR)
        if old[at : min(at + SMALL_SECTOR, shared)] != new[at : min(at + SMALL_SECTOR, shared)]
    ]
    return [*found, (shared, max(len(old), len(new)))] if len(old) != len(new) else found


def _names(folder: Path) -> dict[str, int]:
    return {one.name: one.inode() for one in os.scandir(folder) if one.is_file(follow_symlinks=False)}


class DiskOs:
    """The module `os` as the product's file modules see it; everything not defined here comes from the real one."""

    def __init__(self, scheduler: Scheduler, disk_of: Callable[[Path], Disk | None]) -> None:
        self._scheduler = scheduler
        self._disk_of = disk_of
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        """open(2); no new file on a full disk."""
        self._require_alive()
        disk = self._disk_of(Path(path))
        if disk is not None and disk.full and flags & os.O_CREAT and not os.path.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device (simulated)", str(path))
        return os.open(path, flags, mode)

    def write(self, fd: int, data: Any) -> int:
        """write(2): short or not at all on a full disk."""
        self._require_alive()
        self._scheduler.maybe_pause()
        disk, _ = self._place(fd)
        size = len(data)
        if disk is not None:
            if disk.full:
                size = int(size * self._scheduler.random.random() * 0.5) if disk.torn_writes else 0
                disk.torn_writes = max(0, disk.torn_writes - 1)
                if not size:
                    raise OSError(errno.ENOSPC, "No space left on device (simulated)")
            stat = os.fstat(fd)
            append = _is_append(fd)
            begin = stat.st_size if append else os.lseek(fd, 0, os.SEEK_CUR)
            taken = os.write(fd, memoryview(data)[:size])
            disk.wrote(stat.st_ino, begin, begin + taken)
            self.writes += 1
            return taken
        return os.write(fd, data)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """pwrite(2)."""
        self._require_alive()
        disk, _ = self._place(fd)
        if disk is not None:
            if disk.full and offset + len(data) > os.fstat(fd).st_size:
                raise OSError(errno.ENOSPC, "No space left on device (simulated)")
            disk.wrote(os.fstat(fd).st_ino, offset, offset + len(data))
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        """ftruncate(2)."""
        self._require_alive()
        disk, _ = self._place(fd)
        os.ftruncate(fd, size)
        if disk is not None:
            disk.cut(os.fstat(fd).st_ino, size)

    def fsync(self, fd: int) -> None:
        """fsync(2): of a file or a folder."""
        disk, path = self._place(fd)
        if disk is None:
            return
        self._require_alive()
        folder = os.path.isdir(path)
        content = b"" if folder else _content(fd)
        self._scheduler.sleep(disk.slow_s or self._scheduler.random.random() * 0.002)
        self._require_alive()
        if path.suffix == ".tmp":  # written as a whole, and not by os.write
            disk.file(os.fstat(fd).st_ino).lost = []
            if disk.full:
                raise OSError(errno.ENOSPC, "No space left on device (simulated)")
        fails = disk.failing_syncs > 0
        if folder and not fails:
            disk.sync_names(path)
        elif not folder:
            disk.sync(os.fstat(fd).st_ino, content, fails=fails)
        if fails:
            disk.failing_syncs -= 1
            raise OSError(errno.EIO, "Input/output error (simulated)")

    fdatasync = fsync

    def replace(self, source: Any, target: Any) -> None:
        """rename(2)."""
        self._require_alive()
        os.replace(source, target)

    def unlink(self, path: Any) -> None:
        """unlink(2)."""
        self._require_alive()
        os.unlink(path)

    def listdir(self, path: Any) -> list[str]:
        """The names in a folder; those of an index's log files come from its model."""
        disk = self._disk_of(Path(path))
        level = disk.level.get(str(path)) if disk is not None else None
        return os.listdir(path) if level is None else level.names()

    def statvfs(self, path: Any) -> Any:
        """An empty disk, or a full one."""
        disk = self._disk_of(Path(path))
        free = 0 if disk is not None and disk.full and not disk.torn_writes else 1 << 30
        return _Space(f_blocks=1 << 31, f_bavail=free, f_frsize=1)

    def getloadavg(self) -> tuple[float, float, float]:
        """An idle machine."""
        return 0.0, 0.0, 0.0

    def cpu_count(self) -> int:
        """One CPU."""
        return 1

    def _place(self, fd: int) -> tuple[Disk | None, Path]:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return self._disk_of(path), path

    def _require_alive(self) -> None:
        """A thread of a killed process stops here forever."""
        task = self._scheduler.current
        if task is not None and task.dead:
            self._scheduler.wait()


@dataclass(frozen=True)
class _Space:
    f_blocks: int
    f_bavail: int
    f_frsize: int


def _content(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()  # the file may be open for writing only


def _is_append(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


class FileLocks:
    """`fcntl` for the data directories: a lock is released when its process ends."""

    LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN = 2, 4, 1, 8

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: dict[int, tuple[Any, int]] = {}

    def flock(self, fd: int, operation: int) -> None:
        """flock(2), exclusive and without waiting. Raises BlockingIOError."""
        del operation
        inode = os.fstat(fd).st_ino
        process = self._scheduler.current.process if self._scheduler.current else None
        holder, held_by = self._held.get(inode, (None, -1))
        open_still = holder is not None and not holder.dead and _is_open(held_by, inode)
        if open_still:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds it")
        self._held[inode] = (process, fd)


def _is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False
