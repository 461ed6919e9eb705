"""Single objects of a lake in an object store, read and written with conditions.

Rule: Arrow and delta-rs read and write the tables' files; the locks, the look for a newer commit and the trial of a
store (`storecheck`) need what only the store's own client does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from binlake.errors import Transient
from binlake.lake.access import Access, Keys, find_access, find_provider, is_remote
from binlake.lake.damage import describe_storage_text, translate_object_store_error

if TYPE_CHECKING:
    from binlake.lake.access import Objects

_RETRY_S = 60.0


def open_objects(path: str, retry_s: float = _RETRY_S) -> Objects:
    """The objects below `path`, with conditional puts; an error is tried again for `retry_s`."""
    access = find_access(path)
    return build_objects(path, access, access.read_keys(), retry_s)


def find_object(path: str, name: str) -> bytes | None:
    """The object `name` below `path`, in one request; None if there is none. Raises BinlakeError."""
    try:
        return read_object(path, name)
    except FileNotFoundError:
        return None


def create_object(path: str, name: str, content: bytes) -> bool:
    """Put a new object in one request; False if there is one of that name. Raises BinlakeError."""
    import obstore
    from obstore.exceptions import AlreadyExistsError

    with translate_errors(f"{path}/{name}"):
        try:
            obstore.put(open_objects(path), name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True


def read_object(path: str, name: str) -> bytes:
    """The object `name` below `path`, in one request. Raises FileNotFoundError, BinlakeError."""
    import obstore

    with translate_errors(f"{path}/{name}"):
        return bytes(obstore.get(open_objects(path), name).bytes())


def put_object(path: str, name: str, content: bytes) -> None:
    """Put the object `name` below `path` in one request, whether there was one or not. Raises BinlakeError."""
    import obstore

    with translate_errors(f"{path}/{name}"):
        obstore.put(open_objects(path), name, content, use_multipart=False)


def list_objects(path: str, folder: str, after: str = "") -> list[str]:
    """The names, below `path`, of the objects in `folder`, ascending: of those above `after`. Raises BinlakeError."""
    with translate_errors(f"{path}/{folder}"):
        pages = open_objects(path).list(folder, offset=after or None)
        return sorted(one["path"] for page in pages for one in page)


@contextmanager
def open_parts(path: str) -> Iterator[Callable[[int, int], bytes]]:
    """What reads a part (first byte, number of bytes) of the file or object at `path`; one request each in a store."""
    if is_remote(path):
        folder, _, name = path.rpartition("/")
        yield lambda at, size: _read_range(folder, name, at, size)
        return
    with open(path, "rb") as file:

        def read_part(at: int, size: int) -> bytes:
            file.seek(at)
            return file.read(size)

        yield read_part


def _read_range(folder: str, name: str, at: int, size: int) -> bytes:
    import obstore

    with translate_errors(f"{folder}/{name}"):
        return bytes(obstore.get_range(open_objects(folder), name, start=at, length=size))


def delete_objects(start: str) -> None:
    """Delete all objects whose URIs begin with `start`. Raises BinlakeError."""
    import obstore

    folder, _, name = start.rpartition("/")
    objects = open_objects(folder)
    with translate_errors(start):
        for page in objects.list():
            own = [one["path"] for one in page if one["path"].startswith(name)]
            if own:
                obstore.delete(objects, own)


@contextmanager
def translate_errors(place: str) -> Iterator[None]:
    """While an object at `place` is used: raise the store's errors as BinlakeError, but FileNotFoundError as it is."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise
    except BaseError as error:
        failure = translate_object_store_error(error)
        if failure is None:
            text = f"an object of the lake cannot be used: {describe_storage_text(error)}"
            failure = Transient(text, where={"object": place})
        raise failure from error


@lru_cache(maxsize=64)
def build_objects(path: str, access: Access, keys: Keys | None, retry_s: float) -> Objects:
    """As `open_objects`, for a place that is no lake of this process."""
    return find_provider(path).build_objects(path, access, keys, retry_s)
