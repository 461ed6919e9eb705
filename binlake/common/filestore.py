"""A folder or a bucket that stores whole files.

Rule: a file exists completely or not at all, and it is durable when `put` returns: a local file is written under a
temporary name, synced and renamed; an object store shows an object only when its upload is complete.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

from binlake.common.localfiles import sync_folder
from binlake.common.secrets import Field, resolve_secret
from binlake.errors import ConfigError, Permanent, Transient

_REFUSED = ("NO_SUCH_BUCKET", "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403",
            "ContainerNotFound")  # fmt: skip
"""Texts in errors of the stores that mean that a retry does not help."""
_PIECE = 4 << 20
_BEING_WRITTEN = ".part"
"""Suffix of a local file that is still being written; nobody reads it."""


@dataclass(frozen=True)
class StoreAddress:
    """Where files are: `root` is a local folder (scheme `file`), or bucket and prefix; `access`: how to reach it."""

    scheme: str
    root: str
    access: Mapping[str, str] = field(default_factory=dict, repr=False)


class StoredFiles(Protocol):
    """Whole files by their path below the root, with `/` between folders. All methods raise Transient, Permanent."""

    shown: str
    """The root, as shown to people."""

    def put(self, path: str, content: bytes) -> None:
        """Write the file, replacing an existing one; repeating the call changes nothing."""

    def put_from(self, path: str, content: IO[bytes]) -> None:
        """Like `put`, for the content from its current position to its end, in pieces."""

    def get(self, path: str) -> bytes | None:
        """The content; None if the file does not exist."""

    def open(self, path: str) -> BinaryIO:
        """The file, opened for reading; the caller closes it. Raises Permanent if the file does not exist."""

    def delete(self, path: str) -> None:
        """Delete the file, if it exists."""

    def list(self, folder: str) -> list[str]:
        """The paths of all files below `folder` ("" = all), sorted; [] if the folder does not exist."""


def open_store(address: StoreAddress) -> StoredFiles:
    """The store at `address`. Raises ConfigError."""
    return LocalStore(Path(address.root)) if address.scheme == "file" else ObjectStore(address)


def _build_missing_file_error(where: Mapping[str, object]) -> Permanent:
    return Permanent(
        "a file does not exist",
        where=where,
        hint="restore it from a copy, or begin again if a retention has deleted it in the meantime",
    )


class LocalStore:
    """Files on a local or mounted disk."""

    def __init__(self, root: Path) -> None:
        self._root, self.shown = root, f"file://{root}"

    def put(self, path: str, content: bytes) -> None:
        """See Store.put."""
        self.put_from(path, io.BytesIO(content))

    def put_from(self, path: str, content: IO[bytes]) -> None:
        """See Store.put_from."""
        target = self._root / path
        with self._translate_errors(path):
            _build_folder(target.parent)
            beside = target.with_name(f"{target.name}{_BEING_WRITTEN}")
            with beside.open("wb") as file:
                shutil.copyfileobj(content, file, _PIECE)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
            sync_folder(target.parent)

    def get(self, path: str) -> bytes | None:
        """See Store.get."""
        with self._translate_errors(path):
            target = self._root / path
            return target.read_bytes() if target.exists() else None

    def open(self, path: str) -> BinaryIO:
        """See Store.open."""
        with self._translate_errors(path):
            try:
                return (self._root / path).open("rb")
            except FileNotFoundError:
                raise _build_missing_file_error({"folder": self.shown, "path": path}) from None

    def delete(self, path: str) -> None:
        """See Store.delete."""
        with self._translate_errors(path):
            (self._root / path).unlink(missing_ok=True)

    def list(self, folder: str) -> list[str]:
        """See Store.list."""
        with self._translate_errors(folder):
            files = (at for at in (self._root / folder).rglob("*") if at.suffix != _BEING_WRITTEN and at.is_file())
            return sorted(at.relative_to(self._root).as_posix() for at in files)

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = {"folder": self.shown, "path": path}
            raise Transient(f"a folder of files cannot be used: {error.strerror}", where=where,
                            hint="check the disk and the permissions of the folder") from error  # fmt: skip


def _build_folder(folder: Path) -> None:
    """Create the folder and its missing parents, and fsync each parent."""
    if not folder.exists():
        _build_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


class ObjectStore:
    """Objects below a bucket's prefix, through pyarrow's clients for S3, Google's and Azure's stores."""

    def __init__(self, address: StoreAddress) -> None:
        """Raises ConfigError."""
        self._root, self.shown = address.root, f"{address.scheme}://{address.root}"
        try:
            self._files = _build_client(address)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"an object store cannot be opened: {error}", where={"store": self.shown}, hint="check its URI"
            ) from error

    def put(self, path: str, content: bytes) -> None:
        """See Store.put."""
        self.put_from(path, io.BytesIO(content))

    def put_from(self, path: str, content: IO[bytes]) -> None:
        """See Store.put_from."""
        # An upload stream can only be closed, and closing it publishes what was written so far. An interrupt of the
        # main thread (Ctrl-C, the end of a task) would publish half a file, so another thread uploads and the
        # interrupt waits. The content is read once before, to find read errors early; if it becomes unreadable
        # later, the object is deleted.
        with self._translate_errors(path):
            begin = content.tell()
            size = _count_bytes(content)
            content.seek(begin)
            with ThreadPoolExecutor(1, "upload") as thread:
                thread.submit(self._upload, path, content, size).result()

    def _upload(self, path: str, content: IO[bytes], size: int) -> None:
        target, left = f"{self._root}/{path}", size
        failure: OSError | None = None
        with self._files.open_output_stream(target) as stream:
            while left:
                try:
                    piece = content.read(min(left, _PIECE))
                except OSError as error:
                    failure = error
                    break
                if not piece:
                    failure = OSError(f"a file is {left} bytes shorter than before")
                    break
                stream.write(piece)
                left -= len(piece)
        if failure is not None:
            self._files.delete_file(target)
            raise failure

    def get(self, path: str) -> bytes | None:
        """See Store.get."""
        with self._translate_errors(path):
            try:
                with self._files.open_input_file(f"{self._root}/{path}") as stream:
                    return bytes(stream.readall())
            except FileNotFoundError:
                return None

    def open(self, path: str) -> BinaryIO:
        """See Store.open."""
        with self._translate_errors(path):
            try:
                opened: BinaryIO = self._files.open_input_file(f"{self._root}/{path}")
            except FileNotFoundError:
                raise _build_missing_file_error({"store": self.shown, "path": path}) from None
            return opened

    def delete(self, path: str) -> None:
        """See Store.delete."""
        with self._translate_errors(path):
            try:
                self._files.delete_file(f"{self._root}/{path}")
            except FileNotFoundError:
                return

    def list(self, folder: str) -> list[str]:
        """See Store.list."""
        from pyarrow.fs import FileSelector

        below = f"{self._root}/{folder}".rstrip("/")
        with self._translate_errors(folder):
            found = self._files.get_file_info(FileSelector(below, allow_not_found=True, recursive=True))
            return sorted(one.path.removeprefix(f"{self._root}/") for one in found if one.is_file)

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        where = {"store": self.shown, "path": path}
        try:
            yield
        except PermissionError as error:
            raise Permanent(f"an object store refuses: {error}", where=where, hint="check the credentials") from error
        except OSError as error:
            if any(word in str(error) for word in _REFUSED):
                raise Permanent(
                    f"an object store refuses: {error}", where=where, hint="check the bucket and the permissions"
                ) from error
            raise Transient(
                f"an object store does not answer: {error}",
                where=where,
                hint="check that the store is running and reachable",
            ) from error


def _count_bytes(content: IO[bytes]) -> int:
    """Read all bytes up to the end, and return their number."""
    count = 0
    while piece := content.read(_PIECE):
        count += len(piece)
    return count


def _build_client(address: StoreAddress) -> Any:
    from pyarrow import fs

    access = address.access
    if address.scheme == "s3":
        return fs.S3FileSystem(**_translate_access(access, {
            "access-key": "access_key", "secret-access-key": "secret_key", "session-token": "session_token",
            "region": "region", "endpoint": "endpoint_override",
        }))  # fmt: skip
    if address.scheme in ("gs", "gcs"):
        return fs.GcsFileSystem(**_translate_access(access, {"endpoint": "endpoint_override"}))
    return fs.AzureFileSystem(**_translate_access(access, {
        "account-name": "account_name", "account-key": "account_key", "sas-token": "sas_token",
        "endpoint": "blob_storage_authority",
    }))  # fmt: skip


def _translate_access(access: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    found = {name: (word, access[word]) for word, name in names.items() if word in access}
    return {name: resolve_secret(text, word, _FIELDS.get(word, "password")) for name, (word, text) in found.items()}


_FIELDS: Mapping[str, Field] = {"access-key": "user", "account-name": "user"}
