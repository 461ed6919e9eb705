"""Binlog files of a capture as a feed of Binlake writes them: one window for each recorded state of the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from binlake.binlogfile.folder import BinlogIndex, read_index
from binlake.common.filestore import LocalStore
from binlake.config.protocols import PbOptions
from binlake.config.sinkuri import StorageSection
from binlake.ddl.ddls import build_window_schemas, plan_ddls
from binlake.ddl.definitions import Segments, WindowDefinitions
from binlake.extras.protocols.pbbinlog import PbBinlogFormat
from binlake.feed.files.binlogs import BinlogPublisher
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import ORDER, MessageEncoder, encode_ddls
from binlake.rows.codec import MutationBatch
from binlake.rows.schema import SchemaState
from binlake.rules.topics import Topics
from binlake.testkit.captures import read_expected_states
from binlake.testkit.captures.capture import Capture
from deploy.local.commitlog import RULES, read_log


def write_by_sink(folder: Path, capture: Capture, size: int = 1 << 15) -> BinlogIndex:
    """Write the whole capture in files of about `size` bytes."""
    store = LocalStore(folder)
    with BinlogPublisher(
        StorageSection("file", str(folder), file_size=size), "capture.files", store=store
    ) as publisher:
        for lo, hi, messages in _windows(capture):
            manifest = EncodeManifest("capture", "files", lo, hi, messages.num_rows, 0, "")
            publisher.publish_window(manifest, lambda _, own=messages: iter([own]))  # type: ignore[misc]
    index = read_index(store)
    assert index is not None
    return index


def _windows(capture: Capture) -> Iterator[tuple[int, int, pa.Table]]:
    own, topics = PbBinlogFormat(PbOptions()), Topics([], default="binlog", shared=True)
    log, lo, schema = read_log(capture), 0, SchemaState()
    for state in read_expected_states(capture):
        hi = state.commit_ts
        logged = [ddl for ddl in log.ddls if lo < ddl.commit_ts <= hi]
        jobs = [(ts, job) for ts, job in log.jobs if lo < ts <= hi]
        ddls = plan_ddls(schema, logged, jobs, RULES, lo=lo)
        schemas = build_window_schemas(schema, logged, jobs, lo)
        batch = MutationBatch(RULES.route, invalid_text=RULES.invalid_text, second_writes="once")
        for commit_ts, start_ts, payload, _ in (row for row in log.rows if lo < row[0] <= hi):
            batch.add(payload, commit_ts, start_ts, schemas.find_schema_at(commit_ts))
        segments = Segments(lo, hi, tuple(sorted({ddl.since for ddl in ddls})))
        encoder = MessageEncoder(WindowDefinitions(schema, ddls), segments, topics, own)
        events = encode_ddls(own, topics, lambda *_: True, ddls)
        messages = pa.concat_tables([encoder.encode(batch.take()), events])
        yield lo, hi, messages.sort_by([(name, "ascending") for name in ORDER])
        lo, schema = hi, schema.fold(jobs)
