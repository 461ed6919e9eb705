"""A window's records in its relay files: written as JSON, read back and verified completely before any use.

A record has magic, length, payload and checksum, as in the original's binlog files (tidb-binlog 1.9), and is either
complete or damaged. Damaged or missing files are reported with the file and the range of commit_ts, and nothing reaches
the target (S3-13). In JSON a commit_ts is a decimal string.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import structlog

from binlake.binlogfile import framing
from binlake.errors import ImmutableWindow, LostRange, WireError
from binlake.statements.batch import (
    INDEX,
    StatementBatch,
    compute_digest_of_index,
    convert_batch_to_row,
    restore_checked_batch,
)
from binlake.target.definitions.definitions import ExpectedState
from binlake.target.relay.files import RelayFile, RelayStorage
from binlake.target.segments import SegmentPlan
from binlake.window.manifest import ApplyManifest, format_window_name

FORMAT = 1

Item = dict[str, Any]
log = structlog.get_logger(__name__)
_HINT = "restore the files from a copy, or finish the window from the lake (docs/operate/recover.md)"


class _Head(NamedTuple):
    """The first record of `file`."""

    file: RelayFile
    part: int
    manifest: ApplyManifest


class _FilePosition(NamedTuple):
    file: RelayFile
    offset: int


class RelayWindow:
    """The pinned statements of one window (a StatementSource). Created by `find`."""

    def __init__(self, storage: RelayStorage, manifest: ApplyManifest, files: list[RelayFile]) -> None:
        self.manifest = manifest
        self._storage, self._files = storage, files
        self._index: list[dict[str, Any]] = []
        self._positions: dict[tuple[int, int], list[_FilePosition]] = {}
        self._segments = [decode_segment(item) for item in self._read_and_verify()]
        self._require_pinned_digest()

    @classmethod
    def find(cls, storage: RelayStorage, window: tuple[int, int], digest: str) -> RelayWindow:
        """The window (lo, hi] with the manifest of `digest` (SHA-256, hex) in `storage`.

        Raises LostRange, and the error of a store that does not answer.

        The newest complete attempt is used, even if a newer one is damaged.
        """
        try:
            files = [file for file in storage.list_finished_files() if (file.lo, file.hi) == window]
        except OSError as error:
            raise _build_no_window_error(
                f"the folder of relay files cannot be read: {error.strerror}", storage, window, digest
            ) from error
        tries, unread = _group_by_try(storage, files, digest)
        for damage in unread.values():
            log.warning("relay_file_set_aside", reason=damage.message, **damage.where)
        failures = dict(unread)
        for heads in sorted(tries, key=lambda heads: -heads[-1].file.index):
            try:
                return cls(storage, heads[0].manifest, _require_complete_try(heads, unread))
            except LostRange as error:
                log.warning("relay_try_not_whole", reason=error.message, **error.where)
                failures[heads[-1].file] = error
        if not failures:
            raise _build_no_window_error(
                "no relay file has this window as the target opened it", storage, window, digest
            )
        # The newest attempt is the one worth repairing.
        raise failures[max(failures)]

    def list_segments(self) -> list[SegmentPlan]:
        """All segments in order."""
        return list(self._segments)

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """The batches of a phase, in the order in which they were written. Raises LostRange."""
        for file, offset in self._positions.get((segment, phase), []):
            try:
                with self._storage.open(file) as stream:
                    item = read_record_at(stream, offset)
                yield decode_batch(item)
            except (Damaged, OSError) as error:
                raise _build_lost_error(f"a relay file cannot be read: {error}", file) from error

    def _read_and_verify(self) -> list[Item]:
        """Read and verify all records once; return the segments in the last record."""
        last: Item = {}
        for file in self._files:
            try:
                with self._storage.open(file) as stream:
                    for record in read_records(stream):
                        last = record.value
                        if last["kind"] == "batch":
                            self._remember(file, record.offset, decode_batch(last))
            except (Damaged, OSError, ImmutableWindow) as error:
                raise _build_lost_error(f"a relay file is damaged: {error}", file) from error
        if last.get("kind") != "end" or last["parts"] != len(self._files):
            raise _build_lost_error("a relay file of this window is missing after the file shown", self._files[-1])
        segments: list[Item] = last["segments"]
        self._index += [
            _build_index_row({**i["ddl"], "whole_ts": int(i["ddl"]["whole_ts"])}) for i in segments if i["ddl"]
        ]
        return segments

    def _remember(self, file: RelayFile, offset: int, batch: StatementBatch) -> None:
        self._index.append(_build_index_row({name: getattr(batch, name) for name in INDEX}))
        self._positions.setdefault((batch.segment, batch.phase), []).append(_FilePosition(file, offset))

    def _require_pinned_digest(self) -> None:
        if compute_digest_of_index(self._index) != self.manifest.statement:
            raise _build_lost_error(
                "the relay files do not contain the statements that the manifest pins", self._files[0]
            )


def _build_index_row(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in INDEX} | {"phase": int(values["phase"])}


def select_files_with_manifest(storage: RelayStorage, files: list[RelayFile], digest: str) -> list[RelayFile]:
    """Those of `files` whose first record has the manifest of `digest`."""
    return [head.file for heads in _group_by_try(storage, files, digest)[0] for head in heads]


def _group_by_try(
    storage: RelayStorage, files: list[RelayFile], digest: str
) -> tuple[list[list[_Head]], dict[RelayFile, LostRange]]:
    """The files with the manifest of `digest`, by the attempt that wrote them, and those whose head is unreadable."""
    tries: dict[tuple[str, int], list[_Head]] = {}
    unread: dict[RelayFile, LostRange] = {}
    for file in files:
        try:
            head = _read_head(storage, file)
        except LostRange as error:
            unread[file] = error
        else:
            if head.manifest.compute_digest() == digest:
                # Both the indexes and the parts of one attempt's files are consecutive.
                tries.setdefault((file.mark, file.index - head.part), []).append(head)
    return list(tries.values()), unread


def _require_complete_try(heads: list[_Head], unread: Mapping[RelayFile, LostRange]) -> list[RelayFile]:
    """The files of one attempt. Raises LostRange if one before the last is missing."""
    for number, (file, part, _) in enumerate(heads, 1):
        if part != number:
            missing = replace(file, index=file.index - part + number)
            raise unread.get(missing) or _build_lost_error(f"the relay file {missing.path.name} is missing", file)
    return [head.file for head in heads]


def _read_head(storage: RelayStorage, file: RelayFile) -> _Head:
    try:
        with storage.open(file) as stream:
            item = read_record_at(stream, 0)
        if (item["kind"], item["format"]) == ("window", FORMAT):
            return _Head(file, item["part"], ApplyManifest.from_json(item["manifest"]))
    except (Damaged, OSError, KeyError, TypeError, WireError) as error:
        raise _build_lost_error(f"a relay file is damaged: {error!r}", file) from error
    raise _build_lost_error(f"a relay file of another format: {item['kind']} {item['format']}", file)


def _build_no_window_error(what: str, storage: RelayStorage, window: tuple[int, int], digest: str) -> LostRange:
    return LostRange(
        what,
        where={"folder": storage.label, "window": format_window_name(*window), "manifest": digest[:12]},
        hint=_HINT,
    )


def _build_lost_error(what: str, file: RelayFile) -> LostRange:
    return LostRange(
        what,
        where={"file": file.path, "window": format_window_name(file.lo, file.hi)},
        hint=_HINT,
    )


def encode_head(manifest: ApplyManifest, part: int) -> Item:
    """The first record of every file: its window, and the number of this file within the window (from 1)."""
    return {"kind": "window", "format": FORMAT, "part": part, "manifest": manifest.to_json()}


def encode_batch(batch: StatementBatch) -> Item:
    """The record of a batch."""
    return {"kind": "batch", **_encode_batch_values(batch)}


def encode_end(parts: int, batches: int, segments: list[SegmentPlan]) -> Item:
    """The last record of a window's last file; it shows that the window is complete."""
    return {"kind": "end", "parts": parts, "batches": batches, "segments": [_encode_segment(p) for p in segments]}


def decode_batch(item: Mapping[str, Any]) -> StatementBatch:
    """Parse what `encode_batch` wrote. Raises ImmutableWindow."""
    values = {key: value for key, value in item.items() if key != "kind"}
    return _decode_batch_values(values)


def decode_segment(item: Mapping[str, Any]) -> SegmentPlan:
    """Parse one of the segments that `encode_end` wrote."""
    values = dict(item)
    for name in ("end_ts", "ddl_commit_ts"):
        values[name] = int(values[name])
    for name in ("expected", "expected_after"):
        values[name] = None if values[name] is None else ExpectedState.from_json(values[name])
    ddl = values["ddl"]
    for name in ("touched", "copies"):
        values[name] = tuple((first, second) for first, second in values[name])
    return SegmentPlan(**{**values, "ddl": None if ddl is None else _decode_batch_values(ddl)})


def _encode_segment(plan: SegmentPlan) -> Item:
    return {
        "number": plan.number,
        "end_ts": str(plan.end_ts),
        "schema_version": plan.schema_version,
        "ddl": None if plan.ddl is None else _encode_batch_values(plan.ddl),
        "ddl_commit_ts": str(plan.ddl_commit_ts),
        "touched": plan.touched,
        "expected_after": plan.expected_after and plan.expected_after.to_json(),
        "repeatable": plan.repeatable,
        "expected": plan.expected and plan.expected.to_json(),
        "rows": plan.rows,
        # The planned value, not counted again, so that relay files give the same mode as the lake.
        "bytes": plan.bytes,
        "ordered": plan.ordered,
        "rows_ahead": plan.rows_ahead,
        "copies": plan.copies,
    }


def _encode_batch_values(batch: StatementBatch) -> Item:
    values = convert_batch_to_row(batch)
    # `kind` is the record's own kind, so the batch's kind is stored as `form`.
    return {**{k: v for k, v in values.items() if k != "kind"}, "form": batch.kind, "whole_ts": str(batch.whole_ts)}


def _decode_batch_values(item: Mapping[str, Any]) -> StatementBatch:
    values = {**item, "kind": item["form"], "whole_ts": int(item["whole_ts"])}
    del values["form"]
    return restore_checked_batch(values)


class RelayRecord(NamedTuple):
    """A record `value` at byte `offset` of its file."""

    offset: int
    value: dict[str, Any]


class Damaged(Exception):
    """The file has no complete record at byte `offset`."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"{what} at byte {offset}")


def pack_record(value: Mapping[str, Any]) -> bytes:
    """The record of `value`."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return framing.pack_record(payload)


def read_records(file: BinaryIO) -> Iterator[RelayRecord]:
    """All records of a file in order. Raises Damaged, OSError."""
    size = _measure_file_size(file)
    while (record := _read_next_record(file, size)) is not None:
        yield record


def read_record_at(file: BinaryIO, offset: int) -> dict[str, Any]:
    """The value of the record at `offset`. Raises Damaged, OSError."""
    size = _measure_file_size(file)
    file.seek(offset)
    record = _read_next_record(file, size)
    if record is None:
        raise Damaged(offset, "the file ends")
    return record.value


def _measure_file_size(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _read_next_record(file: BinaryIO, size: int) -> RelayRecord | None:
    """The next record; None at the end of the file, which has `size` bytes."""
    offset = file.tell()
    head = file.read(framing.HEAD.size)
    if not head:
        return None
    if len(head) < framing.HEAD.size:
        raise Damaged(offset, "a torn record")
    magic, length = framing.HEAD.unpack(head)
    if magic != framing.MAGIC:
        raise Damaged(offset, "not a record")
    # Checked before reading: a damaged length may be any number.
    if length + framing.CRC.size > size - file.tell():
        raise Damaged(offset, "a torn record")
    payload, (crc,) = file.read(length), framing.CRC.unpack(file.read(framing.CRC.size))
    if google_crc32c.value(payload) != crc:
        raise Damaged(offset, "a record with a wrong checksum")
    return RelayRecord(offset, json.loads(payload))
