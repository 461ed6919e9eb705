"""Publishes a feed's windows as files, each once. Readers see a window only when it is complete.

Order of writes: the window's plan (the greatest number of each folder before it), definitions, data, indexes, and
`metadata` with its hi. The writes depend only on the window and the plan, so a run killed between any two writes is
repeated with the same bytes under the same names. A window whose hi is in `metadata` is skipped. Readers of `metadata`
never see half a window. There is one writer at a time: the caller must hold the feed's lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.filestore import StoredFiles, open_store
from binlake.common.lakecolumns import Message
from binlake.config.sinkuri import StorageSection
from binlake.errors import DamagedManifest, Permanent
from binlake.feed.files import layout
from binlake.feed.files.datafiles import Cutter, Piece, encode_avro_file, encode_text_file
from binlake.feed.files.layout import Versions, parse_versions
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.manifest import ChangePosition, EncodeManifest

Read = Callable[[ChangePosition | None], Iterator[pa.Table]]
"""Reads the messages of a window after a position, in parts and in commit order."""


@dataclass
class FilePlan:
    """The state before the window up to `hi`. `last`: the greatest file number of each folder that it uses."""

    feed: str
    hi: int
    last: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of the plan's file."""
        return json.dumps({**vars(self), "hi": str(self.hi)}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> FilePlan:
        """Parse what `to_json` wrote. Raises DamagedManifest."""
        try:
            raw = json.loads(content)
            return cls(raw["feed"], int(raw["hi"]), dict(raw["last"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedManifest(f"the plan of a feed's files is damaged: {error}", where={"path": layout.PLAN},
                                  hint="publish to another folder") from error  # fmt: skip


def read_checkpoint(store: StoredFiles) -> int | None:
    """The commit_ts up to which the files have everything; None if they have nothing. Raises Permanent."""
    content = store.get(layout.METADATA)
    if content is None:
        return None
    try:
        return int(json.loads(content)["checkpoint-ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise Permanent(f"the file `metadata` is damaged: {error}", where={"folder": store.shown},
                        hint="write the checkpoint-ts that the feed has reached") from error  # fmt: skip


class FilePublisher:
    """The only writer of `feed`'s files. `checkpoint`: the hi of the last published window; None at first."""

    def __init__(
        self,
        storage: StorageSection,
        protocol: str,
        feed: str,
        *,
        terminator: str = "\r\n",
        recorded: int | None = None,
        store: StoredFiles | None = None,
    ) -> None:
        """`terminator`: the end of lines in a text protocol; `recorded`: the hi of the last window that is known to be
        published, whatever `metadata` says; `store`: used instead of the one at `storage`.

        Raises ConfigError.
        """
        self._recorded = recorded or 0
        self._storage, self._protocol, self._feed, self._terminator = storage, protocol, feed, terminator.encode()
        self._store = store or open_store(storage)
        self._known: set[str] = set()
        self.checkpoint: int | None = None

    def __enter__(self) -> FilePublisher:
        """Read checkpoint and plan. Raises Permanent if the files belong to another feed, Transient."""
        self.checkpoint = read_checkpoint(self._store)
        plan = self._read_plan()
        owner = plan.feed if plan is not None else None
        if owner != self._feed and (owner is not None or self.checkpoint is not None):
            raise Permanent(
                "the folder of a feed has files of another writer",
                where={"folder": self._store.shown, "feed": self._feed, "other": owner or "not Binlake's"},
                hint="give each feed its own folder",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays open between two windows."""

    def publish_window(self, manifest: EncodeManifest, read: Read) -> int:
        """Write and publish the window's files. Returns the number of its messages, 0 if it was published already.

        Raises DamagedManifest, Permanent, Transient.
        """
        if self.checkpoint is not None and self.checkpoint >= manifest.hi:
            return 0
        plan = self._begin(manifest)
        versions = parse_versions(manifest.tables)
        for version in versions:
            self._write_once(*version.build_schema_file())
        sent, last = 0, dict[str, int]()
        cutter = Cutter(Versions(versions), self._storage.date_separator, self._storage.file_size)
        for piece in self._cut_pieces(cutter, read):
            folder = piece.group.folder
            if folder not in plan.last:
                self._note_folders(plan, cutter.list_folders())
            number = last[folder] = last.get(folder, plan.last[folder]) + 1
            path = layout.build_data_path(folder, number, self._storage.index_width, self._protocol)
            self._store.put(path, self._encode_piece(piece, manifest))
            sent += piece.messages.num_rows
        for folder, number in sorted(last.items()):
            name = layout.build_data_path("", number, self._storage.index_width, self._protocol).removeprefix("/")
            self._store.put(layout.build_index_path(folder), f"{name}\n".encode())
        self._store.put(layout.METADATA, f'{{"checkpoint-ts":{manifest.hi}}}'.encode())
        self.checkpoint = manifest.hi
        return sent

    def _begin(self, manifest: EncodeManifest) -> FilePlan:
        """The plan of the window. An incomplete window is written again with the same file numbers."""
        begun = self._read_plan()
        plan = FilePlan(self._feed, manifest.hi)
        if begun is None:
            # This claims the folder for the feed.
            self._store.put(layout.PLAN, plan.to_json())
        elif begun.hi > max(self.checkpoint or 0, self._recorded):
            plan.last |= begun.last
        return plan

    def _note_folders(self, plan: FilePlan, folders: Iterable[str]) -> None:
        """Record the greatest numbers of `folders` before the window's first file is written there."""
        for folder in folders:
            if folder not in plan.last:
                plan.last[folder] = layout.parse_index_number(self._store.get(layout.build_index_path(folder)), folder)
        self._store.put(layout.PLAN, plan.to_json())

    def _cut_pieces(self, cutter: Cutter, read: Read) -> Iterator[Piece]:
        after = None if self.checkpoint is None else ChangePosition.after_commit(self.checkpoint)
        changes = pa.array([INSERT, UPDATE, DELETE])
        for part in read(after):
            is_change = pc.is_in(part.column(Message.OP).cast(pa.string()), changes)
            yield from cutter.add(part.filter(is_change))
        yield from cutter.finish()

    def _encode_piece(self, piece: Piece, manifest: EncodeManifest) -> bytes:
        key, value = piece.group.key_schema, piece.group.value_schema
        if key is None or value is None:
            return encode_text_file(piece.messages, self._terminator)
        return encode_avro_file(piece.messages, manifest.schemas[key], manifest.schemas[value])

    def _write_once(self, path: str, content: bytes) -> None:
        if path not in self._known and self._store.get(path) is None:
            self._store.put(path, content)
        self._known.add(path)

    def _read_plan(self) -> FilePlan | None:
        content = self._store.get(layout.PLAN)
        return None if content is None else FilePlan.from_json(content)
