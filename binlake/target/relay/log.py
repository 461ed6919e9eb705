"""Writes ahead: a window's statements are durable before the first of them reaches the target (DESIGN 3.10, S3-08).

A file is closed after the batch that reaches `max-file-size`, and deleted once the checkpoint has passed its window.
The newest file is never deleted. Sources: tidb-binlog 1.9, 5.9.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

import structlog

from binlake.common.filestore import StoreAddress, open_store
from binlake.config.model import Replication
from binlake.config.servers import TargetSection
from binlake.config.sinkuri import parse_store_address
from binlake.errors import BinlakeError, ConfigError, LostRange
from binlake.statements.batch import Phase
from binlake.target.relay.files import BucketStorage, FolderStorage, RelayFile, RelayStorage, raise_transient_on_failure
from binlake.target.relay.records import (
    Item,
    RelayWindow,
    encode_batch,
    encode_end,
    encode_head,
    pack_record,
    select_files_with_manifest,
)
from binlake.target.segments import SegmentPlan, StatementSource
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger(__name__)

Check = Callable[[], None]
"""Called between two batches. Raises when the run must stop."""


class RelayLog:
    """The relay files of one replication and target, in `storage`."""

    def __init__(self, storage: RelayStorage, max_file_size: int) -> None:
        self.storage = storage
        self._max_file_size = max_file_size

    @classmethod
    def of(cls, replication: Replication, log_dir: str = "") -> RelayLog | None:
        """The relay log of `replication`; None if it has none. `log_dir` overrides its `relay.log-dir`.

        Raises ConfigError if the folder does not exist or the URI names no store.
        """
        location = log_dir or replication.relay.log_dir
        if not location or replication.target is None:
            return None
        own = PurePosixPath(replication.name, _build_folder_name(replication.target))
        return cls(_open_storage(parse_store_address(location), own), replication.relay.max_file_size)

    def write_ahead(self, manifest: ApplyManifest, source: StatementSource, check: Check) -> None:
        """Make the whole window durable unless it is already. Raises Transient (a write failed), LeaseHeld."""
        with self.storage.lock_for_writing():
            if self._is_written(manifest):
                # The attempt that wrote the files may have failed between renaming them and syncing the folder.
                self.storage.sync_files()
            else:
                self._write(manifest, source, check)

    def find_window(self, bounds: tuple[int, int], digest: str) -> RelayWindow:
        """The window (lo, hi] as it was written ahead with the manifest of `digest`. Raises LostRange."""
        return RelayWindow.find(self.storage, bounds, digest)

    def delete_applied(self, commit_ts: int) -> None:
        """Delete the files of windows at or below the checkpoint `commit_ts`, all but the newest file."""
        try:
            passed = [file for file in self.storage.list_finished_files()[:-1] if file.hi <= commit_ts]
        except (OSError, BinlakeError) as error:
            log.warning("relay_files_not_deleted", folder=self.storage.label, error=str(error))
        else:
            self._delete(passed)

    def _delete(self, files: list[RelayFile]) -> None:
        for file in files:
            try:
                self.storage.delete(file)
            except (OSError, BinlakeError) as error:
                # These files are no longer needed. The next window tries again to delete them.
                log.warning("relay_file_not_deleted", file=str(file.path), error=str(error))

    def _is_written(self, manifest: ApplyManifest) -> bool:
        if not self._list_files(manifest):
            return False
        try:
            self.find_window((manifest.lo, manifest.hi), manifest.compute_digest())
        except LostRange as error:
            log.info("relay_written_again", window=manifest.window, reason=error.message)
            return False
        return True

    def _list_files(self, manifest: ApplyManifest) -> list[RelayFile]:
        with raise_transient_on_failure(self.storage.label):
            return [
                file for file in self.storage.list_finished_files() if (file.lo, file.hi) == (manifest.lo, manifest.hi)
            ]

    def _write(self, manifest: ApplyManifest, source: StatementSource, check: Check) -> None:
        failed = select_files_with_manifest(self.storage, self._list_files(manifest), manifest.compute_digest())
        with raise_transient_on_failure(self.storage.label):
            self.storage.remove_unfinished()
            newest = self.storage.list_finished_files()[-1:]
        with _Writer(self.storage, manifest, self._max_file_size, newest[0].index + 1 if newest else 1) as writer:
            plans = source.list_segments()
            for plan in plans:
                self._write_segment(writer, source, plan, check)
            writer.write_end(plans)
            self.storage.publish(writer.files)
        self._delete(failed)
        log.info("relay_written", window=manifest.window, files=len(writer.files), batches=writer.batches)

    def _write_segment(self, writer: _Writer, source: StatementSource, plan: SegmentPlan, check: Check) -> None:
        # The segment's DDL is part of the plan.
        for phase in (*plan.phases, Phase.ORDERED):
            for batch in source.read_batches(plan.number, phase):
                check()
                writer.write_batch(encode_batch(batch))


def _open_storage(address: StoreAddress, own: PurePosixPath) -> RelayStorage:
    """The storage in the folder `own` below `address`. Raises ConfigError."""
    if address.scheme != "file":
        return BucketStorage(open_store(address), own)
    root = Path(address.root)
    if not root.is_dir():
        # Creating it could put the files on this machine's own disk instead of the share.
        raise ConfigError(
            "the folder for relay files does not exist",
            where={"log-dir": root},
            hint="is the share mounted? Create the folder once by hand, inside the share",
        )
    return FolderStorage(root, root / own)


def _build_folder_name(target: TargetSection) -> str:
    """`HOST-PORT-SCHEMA`: safe as a file name, unique per target and checkpoint schema."""
    host, schema = quote(target.host.lower(), safe=""), quote(target.checkpoint_schema, safe="")
    # Unique when parsed from the end: neither the schema nor the port contains a `-`.
    return f"{host}-{target.port}-{schema.replace('-', '%2D')}"


class _Writer:
    """Writes the files of one window, and removes them on failure. `index`: that of the first file."""

    def __init__(self, storage: RelayStorage, manifest: ApplyManifest, max_file_size: int, index: int) -> None:
        self.files: list[RelayFile] = []
        self.batches = 0
        self._storage = storage
        self._manifest = manifest
        self._max_file_size = max_file_size
        self._first = index
        self._open: IO[bytes] | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            if self._open is not None:
                # Closing flushes the buffer, which fails again on a full disk.
                with suppress(OSError):
                    self._open.close()
            try:
                self._storage.remove_unfinished()
            except OSError as error:
                # Report the first failure; the next writer removes these files.
                log.warning("relay_unfinished_not_deleted", folder=self._storage.label, error=str(error))

    def write_batch(self, item: Item) -> None:
        """Write a batch, never split over two files. Raises Transient."""
        with raise_transient_on_failure(self._storage.label):
            if self._open is None or self._open.tell() >= self._max_file_size:
                self._close()
                self._open = self._begin()
            self._open.write(pack_record(item))
        self.batches += 1

    def write_end(self, plans: list[SegmentPlan]) -> None:
        """Write the last record; everything is on disk when this returns. Raises Transient."""
        with raise_transient_on_failure(self._storage.label):
            if self._open is None:
                self._open = self._begin()
            self._open.write(pack_record(encode_end(len(self.files), self.batches, plans)))
            self._close()

    def _begin(self) -> IO[bytes]:
        lo, hi = self._manifest.lo, self._manifest.hi
        file = RelayFile(self._first + len(self.files), lo, hi, self._storage.folder, self._storage.mark)
        opened = self._storage.create(file)
        self.files.append(file)
        opened.write(pack_record(encode_head(self._manifest, len(self.files))))
        return opened

    def _close(self) -> None:
        if self._open is not None:
            self._storage.close(self._open)
            self._open = None
