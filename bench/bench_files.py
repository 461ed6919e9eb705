"""`make bench-files`: writing and reading binlog files, each compared with its floor in the same run.

Writing: rows of `mutation` to records (encode), and a sealed window from the lake to a folder (publish), compared with
writing the same bytes to a file that is synced. Reading: the folder's transactions, checksums and rows, compared with
reading only the bytes and their checksums. Compare ratios.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import google_crc32c
import pyarrow as pa
from feed_load import FeedRows, build_loads

from binlake.binlogfile.reading import BinlogTransaction, read_items
from binlake.common import rowhash
from binlake.common.filestore import LocalStore
from binlake.config.protocols import PbOptions
from binlake.config.sinkuri import StorageSection
from binlake.feed.files.binlogs import BinlogPublisher
from binlake.feed.manifest import EncodeManifest
from binlake.feed.sealed import read_sealed
from binlake.lake.paths import LakePaths
from binlake.lake.tables import build_message_table
from binlake.rules.tables import TableMatcher
from binlake.spark_jobs.job.lake import commit_parts, ensure_table
from binlake.spark_jobs.shared.messages import EncodeTask

REPEATS = int(os.environ.get("ROUNDS", "5"))
_PIECE = 1 << 20


@dataclass
class LeastCpu:
    """The least CPU of some runs."""

    cpu: float = float("inf")

    def run(self, work: Callable[[], object]) -> None:
        """Run `work` once more."""
        gc.collect()
        cpu = time.process_time()
        work()
        self.cpu = min(self.cpu, time.process_time() - cpu)


def main() -> int:
    """Print a line for each step and load."""
    pa.set_cpu_count(1)
    for load in build_loads():
        with tempfile.TemporaryDirectory(prefix="binlake-files-") as folder:
            measure_files(load, Path(folder))
    return 0


def measure_files(load: FeedRows, folder: Path) -> None:
    """Print the rows per second of CPU of one core."""
    paths, manifest = seal_window(load, str(folder / "lake"))
    encode, publish, floor, read, reread = (LeastCpu() for _ in range(5))
    for number in range(REPEATS):
        encode.run(partial(encode_all, load))
        own = folder / f"files-{number}"
        publish.run(partial(publish_all, paths, manifest, own))
        ready = b"".join(at.read_bytes() for at in own.glob("binlog-*"))
        floor.run(partial(write_ready, folder / f"ready-{number}", ready))
        read.run(partial(read_all, own, load.count))
        reread.run(partial(read_bytes, own))
    for name, ours, least in (("encode", encode, None), ("publish", publish, floor), ("read", read, reread)):
        speed = f"{load.count / ours.cpu:>9,.0f} rows/s {len(ready) / ours.cpu / 1e6:>7,.0f} MB/s"
        beside = "" if least is None else f"   bytes alone {len(ready) / least.cpu / 1e6:>7,.0f} MB/s"
        print(f"{name:<8} {load.name:<18} {speed}   CPU us a row {ours.cpu / load.count * 1e6:.2f}{beside}", flush=True)


def encode_all(load: FeedRows) -> None:
    """Encode all rows, as the stage encode does."""
    encoder = load.build_encoder(options=PbOptions())
    for batch in load.batches:
        encoder.encode(batch)


def seal_window(load: FeedRows, folder: str) -> tuple[LakePaths, EncodeManifest]:
    """Encode the rows into a lake, as the stage encode does, and return the sealed manifest."""
    paths, table = LakePaths(folder), build_message_table("f")
    ensure_table(paths, table)
    encoder = load.build_encoder(options=PbOptions())
    task = EncodeTask(encoder, TableMatcher(("*.*",)), "f", "0-1", paths.locate_table(table.name), whole=True)
    encoded = task.write(iter(load.batches))
    commit_parts(paths, table, encoded.parts, [], {})
    digest = rowhash.compute_digest(encoded.fold)
    return paths, EncodeManifest("r", "f", 0, 1, encoded.fold.count, 0, digest, encoded.schemas)


def publish_all(paths: LakePaths, manifest: EncodeManifest, folder: Path) -> None:
    """Publish the window as the stage publish does, after checking its digest."""

    def read_parts(_after: object) -> Iterator[pa.Table]:
        return read_sealed(paths, manifest, None)

    with BinlogPublisher(StorageSection("file", str(folder), file_size=512 << 20), "r.f") as publisher:
        publisher.publish_window(manifest, read_parts)


def write_ready(path: Path, content: bytes) -> None:
    """Write the bytes durably, with the least possible work."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_all(folder: Path, rows: int) -> None:
    """Read every column of every row."""
    items = read_items(LocalStore(folder))
    assert sum(len(item.events) for item in items if isinstance(item, BinlogTransaction)) == rows


def read_bytes(folder: Path) -> None:
    """Read the bytes and compute the checksum of each piece."""
    for at in folder.glob("binlog-*"):
        with at.open("rb") as file:
            while piece := file.read(_PIECE):
                google_crc32c.value(piece)


if __name__ == "__main__":
    raise SystemExit(main())
