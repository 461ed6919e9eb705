"""Reads a window back from its relay files, verified completely, with the digest in its manifest, before any use.

Damaged or missing files are reported with the file and the range of commit_ts, and nothing reaches the target (S3-13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from binlake.errors import ImmutableWindow, LostRange, WireError
from binlake.statements.batch import INDEX, StatementBatch, compute_digest_of_index
from binlake.target.relay.files import RelayFile, RelayStorage
from binlake.target.relay.items import FORMAT, Item, decode_batch, decode_segment
from binlake.target.relay.records import Damaged, read_record_at, read_records
from binlake.target.segments import SegmentPlan
from binlake.window.manifest import ApplyManifest, format_window_name

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
