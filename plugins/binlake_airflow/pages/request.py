"""The parameters of a request, checked before anything is read: names, keys, times and pages from its query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request

from binlake import tso

LONGEST = 4096
"""Characters of one value; a row's key is shorter."""
_MOST_KEYS = 64
_MOST_FIELDS = 64
_LONGEST_BODY = 64 * 1024


class BadPageRequest(Exception):
    """The request is invalid; the text says why."""


class NotAllowed(Exception):
    """The user may not see the object."""


class NotPossible(Exception):
    """The requested action is not possible in the present state."""


@dataclass(frozen=True)
class PageRequest:
    """The parts of one request: `path` parameters, `query` parameters; `framed`: shown inside Airflow's page.

    `sees_masked`: the user may see the values of masked columns.
    """

    path: Mapping[str, str]
    query: QueryParams
    framed: bool = False
    sees_masked: bool = False

    def __post_init__(self) -> None:
        values = [*self.path.values(), *(value for _, value in self.query.multi_items())]
        if any(len(value) > LONGEST for value in values):
            raise BadPageRequest(f"a value is longer than {LONGEST} characters")

    def read_text(self, name: str) -> str:
        """A value without surrounding blanks; empty if it is not given."""
        return self.query.get(name, "").strip()

    def parse_table(self) -> tuple[str, str] | None:
        """(db, table) of `table`; None if it is not given."""
        text = self.read_text("table")
        if not text:
            return None
        db, _, table = text.partition(".")
        if not db or not table:
            raise BadPageRequest(f"{text[:80]!r} does not name a table: write it as db.table")
        return db, table

    def parse_key(self) -> list[str | None] | None:
        """The values of `key`, or the JSON array `json` (which can contain null); None if neither is given."""
        text = self.read_text("json")
        values: list[str | None] = list(self.query.getlist("key"))
        if text:
            try:
                raw = json.loads(text)
            except (ValueError, RecursionError):
                raw = None
            if not isinstance(raw, list) or any(isinstance(value, (list, dict)) for value in raw):
                raise BadPageRequest('the key is not a JSON array of values, such as ["4"]')
            values = [
                None if value is None else value if isinstance(value, str) else json.dumps(value) for value in raw
            ]
        if not all(value is None or _is_text(value) for value in values):
            raise BadPageRequest("the key contains a lone surrogate, which is not valid text")
        if len(values) > _MOST_KEYS:
            raise BadPageRequest(f"a key has at most {_MOST_KEYS} values")
        return values or None

    def parse_moment(self, name: str) -> int | None:
        """A commit_ts or time; None if it is not given."""
        text = self.read_text(name)
        try:
            return tso.parse(text) if text else None
        except (ValueError, OverflowError) as error:
            raise BadPageRequest(str(error)) from error

    def parse_number(self, name: str) -> int:
        """A whole number from 0 on; 0 if it is not given."""
        text = self.read_text(name)
        if not text:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise BadPageRequest(f"{name} is not a number")
        return int(text)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a posted form, or of a JSON object of texts. Raises HTTPException for a body that is neither."""
    body = await _read_body(request)
    try:
        if "json" in request.headers.get("content-type", ""):
            fields = json.loads(body or b"{}")
        else:
            fields = dict(parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is neither a form nor a JSON object") from None
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise HTTPException(400, "the body must be an object of texts")
    return fields


async def _read_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _LONGEST_BODY:
            raise HTTPException(413, "the form is too long")
        parts.append(part)
    return b"".join(parts)


def _is_text(value: str) -> bool:
    """False if it contains a lone surrogate, which JSON can express but UTF-8 cannot."""
    return not any(0xD800 <= ord(sign) <= 0xDFFF for sign in value)
