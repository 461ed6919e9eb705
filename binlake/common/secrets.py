"""Secrets that a file names instead of containing them: users, passwords (`env:NAME`, `airflow:CONN_ID`), files of TLS.

Rule: users and passwords are read from the environment of the process that needs them. `airflow:CONN_ID` is
`AIRFLOW_CONN_CONN_ID`, a URI or JSON as Airflow itself reads it there; Airflow's tasks put it there from whatever
secrets backend has it. The processes of Airflow itself ask Airflow (`ask_for_connections`).
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from binlake.errors import ConfigError

_ID = r"[A-Za-z0-9_.\-]+"
_NAMED = re.compile(rf"(?P<kind>env|airflow):(?P<name>{_ID})")
_CONNECTION = re.compile(rf"\bairflow(?::|%3A)({_ID})", re.IGNORECASE)
_FIELDS = {"user": "login", "password": "password"}

Field = Literal["user", "password"]
FetchConnection = Callable[[str], str | None]
"""Returns the connection of an id, as a URI or JSON; None if there is none."""
_fetchers: list[FetchConnection] = []


def ask_for_connections(fetch: FetchConnection) -> None:
    """Ask `fetch`, instead of what was given before, for connections that the environment does not have."""
    _fetchers[:] = [fetch]


def names_secret(text: str) -> bool:
    """Whether `text` names a secret; else it is the secret itself."""
    return _NAMED.fullmatch(text) is not None


def find_connections(texts: Iterable[str]) -> list[str]:
    """The ids of all Airflow connections that `texts` name, also inside URIs."""
    return sorted({name for text in texts for name in _CONNECTION.findall(text)})


def derive_variable(conn_id: str) -> str:
    """The variable of the environment with the Airflow connection `conn_id`."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def is_defined(text: str) -> bool:
    """Whether this process knows what `text` names, or `text` is the secret itself."""
    named = _NAMED.fullmatch(text)
    return named is None or _find_named(named["kind"], named["name"], os.environ) is not None


def _find_named(kind: str, name: str, known: Mapping[str, str]) -> str | None:
    if kind == "env":
        return known.get(name)
    found = known.get(derive_variable(name))
    if found is None and known is os.environ:
        return next((fetch(name) for fetch in _fetchers), None)
    return found


def resolve_secret(
    text: str,
    key: str,
    field: Field = "password",
    *,
    where: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """`text`, or what it names: of a connection its `field`. Raises ConfigError, which names `key` and `where`."""
    named = _NAMED.fullmatch(text)
    if named is None:
        return text
    known = os.environ if environ is None else environ
    kind, name = named["kind"], named["name"]
    variable = name if kind == "env" else derive_variable(name)
    place = {**(where or {}), "variable": variable}
    if (value := _find_named(kind, name, known)) is not None:
        return value if kind == "env" else _read_connection(value, key, field, place)
    if kind == "env":
        raise ConfigError(
            f"{key} names an environment variable that is not set", where=place, hint=f"export {variable}=…"
        )
    raise ConfigError(
        f"{key} names the Airflow connection {name}, which is not set",
        where=place,
        hint=f"define the connection in Airflow; outside of its tasks, export {variable}=<its URI>",
    )


def _read_connection(text: str, key: str, field: Field, where: Mapping[str, object]) -> str:
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text).get(_FIELDS[field])
        except ValueError:
            raise ConfigError(f"{key}: the Airflow connection is neither a URI nor JSON", where=where) from None
    else:
        parts = urlsplit(text)
        value = {"user": parts.username, "password": parts.password}[field]
        value = unquote(value) if value is not None else None
    if value is None:
        hint = "set it in Airflow"
        raise ConfigError(f"{key}: the Airflow connection has no {_FIELDS[field]}", where=where, hint=hint)
    return str(value)


def load_tls_files(context: ssl.SSLContext, ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """Let `context` trust `ca`, show `cert`, and speak TLS 1.2 or newer. Raises ConfigError."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        where = {"ssl-ca": ca, "ssl-cert": cert, "ssl-key": key, "reason": error}
        raise ConfigError("the TLS files cannot be used", where=where) from None
