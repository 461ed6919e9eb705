"""A stored binlog in readable form: the original's text form, and JSON with its tables and row counts (S0-75)."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from binlake.pump_service.pump.heads import parse_head
from binlake.pump_service.pump.sorter import EntryKind
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire.binlog_pb2 import Binlog, BinlogType, Commit, Prewrite, PrewriteValue, Rollback

_SHOWN_BYTES = 64 << 10  # bytes of one field; formatting them takes some 60 times that memory
_PARSED_BYTES = 64 << 20  # bytes; of a larger binlog only the head is shown

_NAMED = {ord("\n"): r"\n", ord("\r"): r"\r", ord("\t"): r"\t", ord('"'): r"\"", ord("\\"): r"\\"}


def as_text(payload: bytes) -> str:
    """The fields that are set, in the original's protobuf text form. A long field is cut and shown with its size."""
    binlog = _parse_binlog(payload)
    words = [f"tp:{BinlogType.Name(binlog.tp)}"]
    for field, value in binlog.ListFields():
        if field.name == "tp":
            continue
        if value in (0, b""):
            continue  # Go omits it
        if isinstance(value, int):
            words.append(f"{field.name}:{value}")
        else:
            more = f"...({len(value)} bytes)" if len(value) > _SHOWN_BYTES else ""
            words.append(f'{field.name}:"{_quote(value[:_SHOWN_BYTES])}"{more}')
    return " ".join(words) + " \n"


def as_json(payload: bytes, storage: PumpStorage) -> dict[str, Any]:
    """Type, timestamps as decimal strings, and the tables with their row counts; for a C, those of its P."""
    binlog = _parse_binlog(payload)
    body = _read_prewrite(binlog, storage) if binlog.tp == Commit else binlog
    return {
        "type": "Fake" if binlog.start_ts == binlog.commit_ts and binlog.start_ts else BinlogType.Name(binlog.tp),
        "start_ts": str(binlog.start_ts),
        "commit_ts": str(binlog.commit_ts),
        "bytes": len(payload),
        "ddl_job_id": body.ddl_job_id,
        "ddl_query": body.ddl_query.decode(errors="replace"),
        **_count_rows(body.prewrite_value),
    }


def _parse_binlog(payload: bytes) -> Binlog:
    if len(payload) <= _PARSED_BYTES:
        return Binlog.FromString(payload)
    head = parse_head(payload)
    return Binlog(tp=_TYPES.get(head.kind, Prewrite), start_ts=head.start_ts, commit_ts=head.commit_ts)


def _read_prewrite(commit: Binlog, storage: PumpStorage) -> Binlog:
    pointer = storage.index.find_pointer(commit.start_ts)
    return commit if pointer is None else _parse_binlog(storage.read(pointer))


def _count_rows(value: bytes) -> dict[str, Any]:
    try:
        mutations = PrewriteValue.FromString(value)
    except DecodeError:
        return {"schema_version": 0, "tables": [], "note": "its prewrite value cannot be read"}
    tables = [
        {
            "table_id": table.table_id,
            "inserted": len(table.inserted_rows),
            "updated": len(table.updated_rows),
            "deleted": len(table.deleted_rows),
        }
        for table in mutations.mutations
    ]
    return {"schema_version": mutations.schema_version, "tables": tables}


_TYPES = {
    EntryKind.COMMIT: Commit,
    EntryKind.ROLLBACK: Rollback,
    EntryKind.FAKE: Rollback,
    EntryKind.PROVEN_ROLLBACK: Rollback,
}


def _quote(value: bytes) -> str:
    return "".join(_NAMED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in value)
