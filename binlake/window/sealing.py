"""Manifests as text: canonical JSON, and a seal that proves the expected text, kind and version.

In JSON every commit_ts is a decimal string (invariant 12).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from binlake.errors import DamagedManifest, WireError

# 64-bit values, which other JSON readers would round (invariant 12).
_TEXT_KEYS = frozenset({"lo", "hi", "gc_ts", "proof_ts", "cluster_id"})


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
