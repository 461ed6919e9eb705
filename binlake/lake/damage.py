"""What an error of Arrow or delta-rs says about the lake's files, in one line of plain text for people.

Their texts have colours, several lines and no table; a damaged file would otherwise look like a fault of the program.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.lib import ArrowException

from binlake.common.localfiles import SPACE_HINT, describe_os_error
from binlake.errors import BinlakeError, LostRange, Permanent, Transient
from binlake.lake.access import is_remote
from binlake.lake.store import build_delta_options, open_parquet

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_WRAPPERS = re.compile(
    r"(Generic (LocalFileSystem|S3|delta kernel) error|Kernel error|Arrow error|Parquet error|External|"
    r"Failed to parse parquet|Object store error|Object at location)\s*:?\s*"
)
_STORE = re.compile(r"Generic \w+ error")
"""Arrow passes on the object store's errors, also those of its network."""
_OBJECT_STORE = re.compile(r"Generic (S3|GCS|MicrosoftAzure) error|\bAWS Error [A-Z_]+|\bAzure Error: ")
"""How delta-rs and Arrow begin an error of an object store."""
_REFUSALS = ("NO_SUCH_BUCKET", "NoSuchBucket", "ACCESS_DENIED", "AccessDenied", "INVALID_ACCESS_KEY_ID",
             "InvalidAccessKeyId", "SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch", "ContainerNotFound",
             "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch")  # fmt: skip
"""Words in such an error that mean that a retry does not help."""
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"")
_OS_CODE = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
"""The errno in the text of an error of Rust: no attribute has it."""
ARROW_DAMAGE = (
    "Parquet file size is", "Parquet magic bytes not found", "Index not in dictionary bounds", "Invalid base64 input",
    "Tried reading schema message", "Corrupted metadata length", "metadata bytes, but only read",
)  # fmt: skip
"""What an ArrowInvalid says about a damaged file; it has the same type for a fault of the program."""
DELTA_DAMAGE = (
    "Parquet error", "Parquet argument error", "Kernel error: Arrow error", "Kernel error: Json error",
    "Invalid Checkpoint", "Expected contiguous commit files",
)  # fmt: skip
"""The layers named in a DeltaError that has read a damaged file. All errors of delta-rs have one of five types."""
STORE_DAMAGE = ("Requested range was invalid",)
"""What an OSError of the object store says about a file that is too short."""
_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE}
)
_LETTERS = 300
_SPARE_BYTES = 16 << 20
"""More than the largest control table's compaction and checkpoint write."""
_RESTORE = "restore the file from a copy; what is derived (mutation, ddl, change, statement) can be derived again"


def describe_storage_text(error: BaseException) -> str:
    """The error's text in one line without colours and the layers' names. Quoted texts may be values: left out."""
    lines = _COLOUR.sub("", str(error)).replace("↳", "").split("\n")
    text = ": ".join(line.strip() for line in lines if line.strip())
    if "Cast error" in text:
        text = _VALUE.sub("'…'", text)
    return (_WRAPPERS.sub("", text).strip(" :") or type(error).__name__)[:_LETTERS]


def is_storage_error(error: BaseException) -> bool:
    """False for errors of the network and of the program, also where they are OSErrors."""
    if isinstance(error, OSError):
        is_named = error.filename is not None or error.errno in _ERRNOS
        return is_named or (error.errno is None and (_is_of_arrow(error) or _WRAPPERS.search(str(error)) is not None))
    return isinstance(error, DeltaError)


def translate_storage_error(error: BaseException) -> BinlakeError | None:
    """The error for people if `error` is one of the disk, of the lake's storage or of its files; else None."""
    text = describe_storage_text(error)
    if (failure := translate_object_store_error(error)) is not None:
        return failure
    if isinstance(error, CommitFailedError):
        return Transient(
            f"a commit to the lake was refused: another one came first, or the store's answer to it was lost ({text})",
            hint="run it again: it looks at what was committed",
        )
    if _is_damage(error):
        return LostRange(f"a file of the lake is damaged: {text}", hint=_RESTORE)
    if isinstance(error, DeltaError):
        return BinlakeError(f"the lake's storage fails: {text}", hint=SPACE_HINT)
    if isinstance(error, OSError):
        return describe_os_error(error, text)
    return None


def translate_object_store_error(error: BaseException) -> BinlakeError | None:
    """The error for people if `error` is one of a lake's object store or of the way to it; else None."""
    if _OBJECT_STORE.search(str(error)) is None or isinstance(error, FileNotFoundError):
        return None
    text = describe_storage_text(error)
    if any(word in text for word in _REFUSALS):
        return Permanent(
            f"the lake's object store refuses: {text}",
            hint="check the bucket or container, its permissions, and the credentials in the environment"
            " (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY, …)",
        )
    return Transient(
        f"the lake's object store does not answer: {text}",
        hint="check `lake.storage` and that the store is reachable; then run it again",
    )


def find_os_code(error: BaseException) -> int | None:
    """The errno of an error of the operating system; None for any other."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _OS_CODE.search(str(error))
    return int(found[1] or found[2]) if found is not None else None


def _is_damage(error: BaseException) -> bool:
    """Whether a file was read that is damaged or missing: by type and code where a library has them."""
    text, code = _COLOUR.sub("", str(error)), find_os_code(error)
    if isinstance(error, ArrowException):
        return any(part in text for part in ARROW_DAMAGE)
    if isinstance(error, DeltaError):
        return code in (None, errno.ENOENT) and any(part in text for part in DELTA_DAMAGE)
    if not isinstance(error, OSError) or error.errno is not None:
        return False
    # Arrow and the object store give no errno: neither for a missing file nor for bytes that are no Parquet.
    is_missing = isinstance(error, FileNotFoundError)
    return is_missing or (code is None and (_is_of_arrow(error) or any(part in text for part in STORE_DAMAGE)))


def _is_of_arrow(error: OSError) -> bool:
    """Whether Arrow itself raised it: of its errors only those about the bytes of a file are a plain OSError without
    an errno."""
    frames = traceback.extract_tb(error.__traceback__)
    is_arrow = type(error) is OSError and bool(frames) and frames[-1].name == "pyarrow.lib.check_status"
    return is_arrow and _STORE.search(str(error)) is None


def require_space(path: str) -> None:
    """Before a write to the local folder `path`: require space on its disk. Raises Transient.

    On a full disk, threads of delta-rs panic, and print so, before its error arrives here.
    """
    folder = Path(path)
    if is_remote(path):
        return
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    left = status.f_bavail * status.f_frsize
    # Some mounts of object stores do not tell their size: they say 0 blocks.
    if status.f_blocks and left < _SPARE_BYTES:
        raise Transient(
            f"the disk of the lake has {left >> 20} MiB left: nothing is written to it",
            where={"path": path, "needed": f"{_SPARE_BYTES >> 20} MiB"},
            hint="make space; then run it again",
        )


@contextmanager
def name_damage(path: str, version: int | None = None, *, missing: bool = True) -> Iterator[None]:
    """While the table at `path` is read: raise LostRange with the damaged or missing file if there is one.

    `missing` False: a file that is gone is no damage, as in a version beyond the retention. The files are tried only
    after an error.
    """
    try:
        yield
    except (ArrowException, OSError, DeltaError) as error:
        found = _find_damaged_file(path, version, missing=missing)
        if found is None:
            raise
        file, cause = found
        raise _build_damage_error(Path(path).name, file, cause) from error


@contextmanager
def name_damaged_file(file: str) -> Iterator[None]:
    """While `file` is read: raise LostRange that names it if it cannot be read."""
    try:
        yield
    except (ArrowException, OSError) as error:
        if (failure := translate_object_store_error(error)) is not None:
            raise failure from error
        raise _build_damage_error(Path(file).parent.parent.name, file, error) from error


def _build_damage_error(table: str, file: str, cause: Exception) -> LostRange:
    return LostRange(
        f"a file of the lake's table `{table}` is damaged: {describe_storage_text(cause)}",
        where={"file": file},
        hint=_RESTORE,
    )


def _find_damaged_file(path: str, version: int | None, *, missing: bool) -> tuple[str, Exception] | None:
    """The first file of the table that cannot be read, and why."""
    try:
        uris = DeltaTable(path, version=version, storage_options=build_delta_options(path)).file_uris()
    except DeltaError:
        return None
    for uri in uris:
        file = unquote(uri.removeprefix("file://"))
        try:
            _read_all(file)
        except FileNotFoundError:
            if missing:
                return file, FileNotFoundError("it is missing")
        except (ArrowException, OSError) as error:
            return None if translate_object_store_error(error) is not None else (file, error)
    return None


def _read_all(file: str) -> None:
    with open_parquet(file) as parquet:
        for group in range(parquet.metadata.num_row_groups):
            parquet.read_row_group(group)
