"""Configured addresses in the form in which they may be shown: without user, password and query; and Airflow's own.

Names of datasets and docs of DAGs are shown in other systems (OpenLineage, the UI). A password with an unescaped `/`,
`?` or `@` is not valid in a URI, but people write such URIs: then everything up to the last `@` is taken as the
password.
"""

from __future__ import annotations

import re

from airflow.configuration import conf

PAGES = "/binlake"
"""The path of Binlake's pages below Airflow's address."""
_PORT = re.compile(r":[0-9]+(?=[/?#]|$)")
_FIRST = re.compile(r"[:@/?#]")
_BUCKETS = frozenset({"s3", "s3a", "s3n", "gs"})
"""Schemes whose authority is a bucket, without a port."""
_BOXES = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Schemes whose authority is container@account."""


def extract_host_and_port(address: str) -> str:
    """host:port of a server's address, which may have a scheme."""
    return _cut_at(address.rpartition("://")[2].rpartition("@")[2], "/?#")


def split_uri(uri: str) -> tuple[str, str, str]:
    """Scheme, authority and path of a storage URI."""
    written, _, rest = uri.partition("://")
    scheme = written.lower()
    rest = _cut_at(rest[_find_end_of_user(scheme, rest) :], "?#")
    authority, slash, path = rest.partition("/")
    return scheme, authority, slash + path


def strip_secrets(path: str) -> str:
    """A folder unchanged; a URI without user, password and query."""
    if "://" not in path:
        return path
    scheme, authority, name = split_uri(path)
    return f"{scheme}://{authority}{name}"


def _find_end_of_user(scheme: str, rest: str) -> int:
    """The index at which the host begins in the text after `scheme://`."""
    first = _FIRST.search(rest)
    if first is None or first[0] in "/?#":
        return 0
    if first[0] == ":" and (scheme in _BUCKETS or not _PORT.match(rest, first.start())):
        return rest.rfind("@") + 1
    if first[0] == "@" and scheme not in _BOXES:
        return _cut_at(rest, "/?#").rfind("@") + 1
    return 0


def _cut_at(text: str, ends: str) -> str:
    return re.split(f"[{re.escape(ends)}]", text, maxsplit=1)[0]


def read_base_url() -> str:
    """Airflow's address as people reach it, without a slash at its end; empty if `[api] base_url` is not set."""
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")


def is_page_address(text: str) -> bool:
    """Whether `text` is the address of a web page."""
    return text.startswith(("http://", "https://"))
