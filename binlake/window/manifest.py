"""The manifests of land and convert, sealed once as canonical JSON: a rerun must use what they pin.

Sources: DESIGN 2; hazards R-03, R-16, R-40. In JSON every commit_ts is a decimal string (invariant 12).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from binlake.errors import DamagedManifest, WireError

# 64-bit values, which other JSON readers would round (invariant 12).
_TEXT_KEYS = frozenset({"lo", "hi", "gc_ts", "proof_ts", "cluster_id"})
_LATER = ("cuts", "compact", "limits")
"""Fields of an apply manifest that the first ones did not have."""


def encode_canonical_json(value: Mapping[str, Any]) -> str:
    """The only text of `value`: sorted keys, timestamps as strings."""
    return json.dumps(_format_timestamps(value), sort_keys=True, separators=(",", ":"))


def parse_object(text: str, kind: str) -> dict[str, Any]:
    """Parse what `encode_canonical_json` wrote. Raises WireError."""
    try:
        raw = _parse_timestamps(json.loads(text))
    except (ValueError, TypeError) as error:
        raise WireError(f"{kind} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise WireError(f"{kind} is not a JSON object")
    return raw


def digest_text(text: str) -> str:
    """SHA-256, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def seal(kind: str, version: int, body: Mapping[str, Any]) -> str:
    """`body` as text with its kind, version and digest."""
    digest = digest_text(encode_canonical_json(body))
    return encode_canonical_json({"kind": kind, "version": version, "digest": digest, "body": body})


def unseal(text: str, kind: str, version: int) -> dict[str, Any]:
    """Parse what `seal` wrote and return the body. Raises DamagedManifest if it is not exactly what was sealed."""
    try:
        raw = parse_object(text, f"the {kind} manifest")
    except WireError as error:
        raise DamagedManifest(error.message) from None
    if raw.get("kind") != kind:
        raise DamagedManifest(f"this is not a {kind} manifest", where={"kind": raw.get("kind")})
    if raw.get("version") != version:
        raise DamagedManifest(
            f"another version of Binlake sealed the {kind} manifest",
            where={"sealed": raw.get("version"), "read_here": version},
        )
    body = raw.get("body")
    if not isinstance(body, dict) or digest_text(encode_canonical_json(body)) != raw.get("digest"):
        raise DamagedManifest(f"the {kind} manifest is damaged: its digest is not that of its text")
    return body


def _format_timestamps(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: str(item) if key in _TEXT_KEYS else _format_timestamps(item) for key, item in value.items()}
    return [_format_timestamps(item) for item in value] if isinstance(value, list | tuple) else value


def _parse_timestamps(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: int(item) if key in _TEXT_KEYS else _parse_timestamps(item) for key, item in value.items()}
    return [_parse_timestamps(item) for item in value] if isinstance(value, list) else value


def format_window_name(lo: int, hi: int) -> str:
    """The name of the window (lo, hi] in tables, logs and pages: `lo-hi`."""
    return f"{lo}-{hi}"


class OfWindow:
    """Something that belongs to one window (lo, hi]; both are commit_ts."""

    lo: int
    hi: int

    @property
    def window(self) -> str:
        """`lo-hi`."""
        return format_window_name(self.lo, self.hi)


@dataclass(frozen=True)
class MemberProof:
    """One pump's part in a window and the proof that it was complete.

    `proof_ts`: the commit_ts >= hi of the entity that ended its stream (0 = drained before the window, not pulled);
    `gc_ts`: the greater of the values read before and after the pull.
    """

    node_id: str
    store_uuid: str
    state: str
    gc_ts: int
    proof_ts: int
    entities: int


@dataclass(frozen=True)
class WindowManifest(OfWindow):
    """Sealed by land: the window (lo, hi], its members, and the digest of its rows in `binlog`.

    `schema_version`: the schema history's version at hi; `dml` and `ddls` count transactions, `chunks` their further
    rows after the first; `bytes`: payload bytes.
    """

    replication: str
    cluster_id: int
    lo: int
    hi: int
    config_hash: str
    members: tuple[MemberProof, ...]
    dml: int
    ddls: int
    chunks: int
    bytes: int
    schema_version: int
    digest: str

    def to_json(self) -> str:
        """Canonical JSON, timestamps as strings."""
        return encode_canonical_json(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WindowManifest:
        """Parse what `to_json` wrote. Raises WireError."""
        raw = parse_object(text, cls.__name__)
        return cls(**{**raw, "members": tuple(MemberProof(**member) for member in raw["members"])})


@dataclass(frozen=True)
class ApplyManifest(OfWindow):
    """Pinned by convert for one SQL sink before the first write: finalize executes exactly this.

    `lo`: also the checkpoint's commitTS that it was made for; `definitions`: the digest of the target's definitions at
    lo; `safe_mode`: the form of the writes (safe or plain); `change` and `statement`: the digests of the derived
    tables; `windows`: the landed windows that it covers; `cuts`: the commit_ts at which its segments start, from the
    second one; `compact`: the digest of the compact manifest that it is based on (empty: sealed before these existed);
    `limits`: if the rows of `statement` are not in the lake, what their batches were limited to when they were derived
    (rows, bytes of text, bytes of a packet); empty: they are in the lake.
    """

    replication: str
    sink: str
    cluster_id: int
    lo: int
    hi: int
    config_hash: str
    safe_mode: str
    definitions: str
    change: str
    statement: str
    segments: int
    rows: int
    schema_version: int
    windows: tuple[str, ...]
    cuts: tuple[int, ...] = ()
    compact: str = ""
    limits: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Canonical JSON, timestamps as strings."""
        values = asdict(self)
        values["cuts"] = [str(commit_ts) for commit_ts in self.cuts]
        # Omitted when empty, so that manifests sealed before they existed keep their digest.
        return encode_canonical_json({key: value for key, value in values.items() if value or key not in _LATER})

    @classmethod
    def from_json(cls, text: str) -> ApplyManifest:
        """Parse what `to_json` wrote. Raises WireError."""
        raw = parse_object(text, cls.__name__)
        cuts = tuple(int(commit_ts) for commit_ts in raw.get("cuts", ()))
        return cls(**{**raw, "windows": tuple(raw["windows"]), "cuts": cuts, "limits": tuple(raw.get("limits", ()))})

    def compute_digest(self) -> str:
        """SHA-256 of the canonical JSON, stored at the target with the open window."""
        return digest_text(self.to_json())
