"""Errors of damaged files and full disks, as the real libraries raise them: each text that Binlake looks for is among
them, and each is told from an error of the operating system, of the network and of the program."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError, SchemaMismatchError
from pyarrow.lib import ArrowException
from support.fulldisk import files_of_at_most

from binlake.errors import BinlakeError, LostRange, Permanent, Transient
from binlake.lake.damage import (
    ARROW_DAMAGE,
    DELTA_DAMAGE,
    STORE_DAMAGE,
    find_os_code,
    is_storage_error,
    translate_storage_error,
)

ROWS = pa.table(
    {"id": list(range(3000)), "s": [f"text {n % 97}" for n in range(3000)], "b": [b"%08d" % n for n in range(3000)]}
)
LIMIT = 100_000

Read = Callable[[], object]


def list_damages(content: bytes, flips: int) -> Iterator[bytes]:
    """The content cut, overwritten, and with a few other bytes."""
    size, draw = len(content), random.Random(1)
    yield from (
        b"",
        content[: size // 2],
        content[:-1],
        content[:-8],
        content[size // 3 :],
        bytes(size),
        b"no file" * 9,
    )
    yield content[:4] + b"\xff" * min(400, size // 3) + content[4 + min(400, size // 3) :]
    yield content[:-8] + b"\xff\xff\xff\x7f" + content[-4:]
    if (schema := content.find(b"ARROW:schema")) > 0:
        yield content[: schema + 40] + b"!" + content[schema + 41 :]
    for _ in range(flips):
        changed, at = bytearray(content), draw.randrange(size)
        for n in range(draw.choice([1, 4, 16])):
            changed[min(size - 1, at + n)] ^= draw.randrange(1, 256)
        yield bytes(changed)


def collect(file: Path, *reads: Read, flips: int = 40) -> Iterator[Exception]:
    """The errors of `reads` after each damage of `file`, which is as before in the end."""
    content = file.read_bytes()
    try:
        for damaged in list_damages(content, flips):
            for read in reads:
                file.write_bytes(damaged)
                yield from raised(read)
        file.unlink()
        for read in reads:
            yield from raised(read)
    finally:
        file.write_bytes(content)


def raised(read: Read) -> list[Exception]:
    try:
        read()
    except Exception as error:  # noqa: BLE001 - whatever the library raises
        return [error]
    return []


def find_file(path: Path) -> Path:
    return Path(unquote(DeltaTable(str(path)).file_uris()[0].removeprefix("file://")))


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[Exception]:
    """Of reading damaged files of each kind that a lake has."""
    root, found = tmp_path_factory.mktemp("damaged"), list[Exception]()
    for codec in ("ZSTD", "SNAPPY", "UNCOMPRESSED"):
        path = root / codec
        write_deltalake(str(path), ROWS, writer_properties=WriterProperties(compression=codec))
        file = find_file(path)
        found += collect(file, partial(read_parquet, file), partial(read_table, path), partial(delete_rows, path, file))
    return [*found, *damage_log(root / "log"), *damage_stream(root / "rows.arrow")]


def read_parquet(file: Path) -> None:
    with pq.ParquetFile(file) as parquet:
        parquet.read_row_group(0)


def read_table(path: Path) -> object:
    return DeltaTable(str(path)).to_pyarrow_dataset().to_table(filter=ds.field("id") > 2990)


def delete_rows(path: Path, file: Path) -> None:
    """Delete rows if the file is damaged: an intact one stays in the table."""
    if file.exists() and not raised(partial(read_parquet, file)):
        return
    DeltaTable(str(path)).delete("id % 2 = 0")


def damage_log(path: Path) -> Iterator[Exception]:
    for _ in range(3):
        write_deltalake(str(path), ROWS, mode="append")
    log = path / "_delta_log"
    yield from collect(log / f"{1:020}.json", lambda: DeltaTable(str(path)), flips=0)
    DeltaTable(str(path)).create_checkpoint()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    yield from collect(checkpoint, lambda: DeltaTable(str(path)).file_uris())


def damage_stream(file: Path) -> Iterator[Exception]:
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_stream(opened, ROWS.schema) as stream:
        stream.write_table(ROWS, max_chunksize=500)

    def read() -> object:
        with pa.ipc.open_stream(pa.py_buffer(file.read_bytes())) as stream:
            return stream.read_all()

    yield from collect(file, read)


def test_damage_is_found_in_errors_of_every_kind(errors: list[Exception]) -> None:
    assert {type(error) for error in errors} >= {OSError, FileNotFoundError, DeltaError, pa.ArrowInvalid}
    missed = {
        f"{type(error).__name__}: {error}"
        for error in errors
        if not isinstance(translate_storage_error(error), LostRange) and find_os_code(error) != errno.ENOENT
    }
    # Without any layer are errors of serde, and of a task that panicked: they are errors of the lake's storage.
    assert {text for text in missed if "Kernel error: expected " not in text and "panicked" not in text} == set()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((ArrowException, text) for text in ARROW_DAMAGE),
        *((DeltaError, text) for text in DELTA_DAMAGE),
        *((OSError, text) for text in STORE_DAMAGE),
    ],
)
def test_each_text_is_one_of_a_real_library(errors: list[Exception], kind: type[Exception], text: str) -> None:
    others = {ArrowException: ARROW_DAMAGE, DeltaError: DELTA_DAMAGE, OSError: STORE_DAMAGE}[kind]
    own = [error for error in errors if isinstance(error, kind) and text in str(error)]
    assert own
    if kind is DeltaError:
        # Some errors name several layers.
        return
    assert any(sum(other in str(error) for other in others) == 1 for error in own)


def test_full_disk_is_known_by_its_code_not_as_damage(tmp_path: Path) -> None:
    many = pa.table({"s": [os.urandom(8).hex() for _ in range(100_000)]})
    write_deltalake(str(tmp_path / "t"), many.slice(0, 10))
    with files_of_at_most(LIMIT):
        found = [
            *raised(partial(write_deltalake, str(tmp_path / "t"), many, mode="append")),
            *raised(partial(pq.write_table, many, tmp_path / "x.parquet")),
        ]
    assert [type(error) for error in found] == [DeltaError, OSError]
    for error in found:
        assert find_os_code(error) == errno.EFBIG
        told = translate_storage_error(error)
        assert type(told) is BinlakeError
        assert "its disk has space" in told.hint


def test_folder_that_cannot_be_made_has_a_code() -> None:
    (error,) = raised(partial(write_deltalake, "/etc/hostname/t", ROWS))
    assert find_os_code(error) == errno.ENOTDIR
    assert type(translate_storage_error(error)) is BinlakeError


def test_silent_object_store_is_no_damage() -> None:
    options = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "x", "allow_http": "true", "max_retries": "0", "retry_timeout": "1s",
    }  # fmt: skip
    (error,) = raised(partial(DeltaTable, "s3://b/t", storage_options=options))
    assert find_os_code(error) == errno.ECONNREFUSED
    assert type(translate_storage_error(error)) is Transient


def test_refusal_of_an_object_store_is_permanent_and_names_the_credentials() -> None:
    for text in ("AWS Error NO_SUCH_BUCKET during CreateMultipartUpload", "Generic S3 error: … AccessDenied"):
        found = translate_storage_error(OSError(f"When writing: {text}"))
        assert isinstance(found, Permanent)
        assert "AWS_ACCESS_KEY_ID" in found.hint


def test_faults_of_the_program_stay_what_they_are(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS)
    other: Any = DeltaTable(path).to_pyarrow_dataset()
    (unknown,) = raised(partial(other.to_table, columns=["none"]))
    assert isinstance(unknown, ArrowException)
    assert translate_storage_error(unknown) is None
    (mismatch,) = raised(partial(write_deltalake, path, pa.table({"z": [1]}), mode="append"))
    assert isinstance(mismatch, SchemaMismatchError)
    assert type(translate_storage_error(mismatch)) is BinlakeError
    assert not is_storage_error(OSError("got end of file during message"))
    assert not is_storage_error(TimeoutError("timed out"))
