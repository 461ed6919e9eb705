"""A client for a Confluent-compatible schema registry: gets a schema's id, and registers new schemas (2.5, S2-44).

Rule: a refusal of the registry is an error with the registry's message; Binlake neither sends another schema instead
nor changes a policy (S2-38). Credentials are in the URL, percent-encoded, and are never shown (S2-06).
"""

from __future__ import annotations

import ssl
from types import TracebackType
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from binlake.common.secrets import names_secret, resolve_secret
from binlake.errors import ConfigError, Permanent, Transient

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
MAGIC = b"\x00"
"""The first byte of each key and value, before the id (reference 2.1)."""
_FILES = ("ca", "cert", "key")
_TIMEOUT_S = 10.0
_TRIES = 4
_CLIENT_ERRORS = range(400, 500)
_BUSY = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS)


class SchemaRefused(Permanent):
    """The registry refuses a schema, because it is incompatible with the subject's schemas or invalid."""


def encode_header(schema_id: int) -> bytes:
    """The header of a key or value: the magic byte and the id, four bytes big-endian."""
    return MAGIC + schema_id.to_bytes(4, "big")


class SchemaRegistry:
    """A client that caches the newest schema id of each subject."""

    def __init__(self, url: str) -> None:
        """`?ca=`, `&cert=`, `&key=` at the end of an https URL are PEM files.

        Raises ConfigError for a URL that is not http(s), has a bare `@` or `:`, or names files that cannot be read.
        """
        parts = _split_url(url)
        self.shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        user = _read_user(parts) if parts.username else None
        # Only TLS needs the system's certificates, which take 20 ms of CPU to read.
        context = _build_tls_context(parts) if parts.scheme == "https" else False
        self._client = httpx.Client(
            base_url=self.shown, auth=user, verify=context, timeout=_TIMEOUT_S, trust_env=False,
            headers={"Accept": MEDIA_TYPE},
        )  # fmt: skip
        self._ids: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> SchemaRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def require_answer(self) -> None:
        """Request the root, as TiCDC does at its start. Raises Transient without an answer, Permanent for a refusal."""
        # The body, `{}` or a page for people, is ignored.
        self._ask("GET", "/")

    def register_schema(self, subject: str, schema: str) -> int:
        """The id of `schema` in `subject`. A new schema is registered.

        Raises SchemaRefused with the registry's message, Transient when the registry cannot be reached.
        """
        known = self._ids.get(subject)
        if known is not None and known[0] == schema:
            return known[1]
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema}).json()
        number = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(number, int) or number <= 0:
            raise Permanent("the registry's answer has no id", where={"registry": self.shown, "subject": subject})
        self._ids[subject] = (schema, number)
        return number

    def find(self, subject: str, schema: str) -> int | None:
        """The id of `schema` in `subject`; None if it is not registered. Raises Transient, Permanent."""
        answer = self._request("POST", f"/subjects/{quote(subject, safe='')}", {"schema": schema}, absent=True)
        return None if answer is None else int(answer.json()["id"])

    def find_newest_schema(self, subject: str) -> str | None:
        """The text of the newest schema of `subject`; None if the subject does not exist. Raises Transient."""
        answer = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions/latest", absent=True)
        return None if answer is None else str(answer.json()["schema"])

    def fetch_schema(self, schema_id: int) -> str:
        """The text of the schema `schema_id`. Raises Permanent if the registry does not have it, Transient."""
        return str(self._ask("GET", f"/schemas/ids/{schema_id}").json()["schema"])

    def _request(
        self, method: str, path: str, body: dict[str, str] | None = None, *, absent: bool = False
    ) -> httpx.Response | None:
        """The registry's answer; None if it answers 404 and `absent` is allowed."""
        try:
            return self._ask(method, path, body)
        except SchemaRefused as error:
            if absent and error.where.get("status") == str(httpx.codes.NOT_FOUND):
                return None
            raise

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> httpx.Response:
        again = Retrying(
            retry=retry_if_exception_type(Transient),
            stop=stop_after_attempt(_TRIES),
            wait=wait_random_exponential(0.1, max=2),
            reraise=True,
        )
        answer: httpx.Response = again(self._send_once, method, path, body)
        return answer

    def _send_once(self, method: str, path: str, body: dict[str, str] | None) -> httpx.Response:
        where = {"registry": self.shown, "path": path}
        try:
            answer = self._client.request(
                method, path, json=body, headers={"Content-Type": MEDIA_TYPE} if body else None
            )
        except httpx.HTTPError as error:
            raise Transient(
                f"the schema registry does not answer: {error}", where=where, hint="check --schema-registry"
            ) from error
        if answer.is_success:
            return answer
        where["status"] = str(answer.status_code)
        words = _read_message(answer)
        if answer.status_code in _CLIENT_ERRORS and answer.status_code not in _BUSY:
            if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise Permanent(f"the schema registry refuses access: {words}", where=where,
                                hint="check user and password in --schema-registry")  # fmt: skip
            raise SchemaRefused(
                f"the schema registry refuses a schema: {words}",
                where=where,
                hint="change the subject's compatibility or the table, then resume the changefeed",
            )
        raise Transient(f"the schema registry failed: {words}", where=where)


def _read_message(answer: httpx.Response) -> str:
    """The registry's message in `answer`."""
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:500] or answer.reason_phrase


def _split_url(url: str) -> SplitResult:
    parts = urlsplit(url)
    credentials, _, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("a schema registry's URL must be http:// or https://", hint="http://127.0.0.1:8081")
    user, _, password = credentials.partition(":")
    if "@" in credentials or not all(":" not in text or names_secret(text) for text in (user, password)):
        raise ConfigError(
            "user and password in a schema registry's URL must be percent-encoded",
            where={"host": host},
            hint="write @ as %40 and : as %3A",
        )
    return parts


def _read_user(parts: SplitResult) -> tuple[str, str]:
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return resolve_secret(user, "schema-registry", "user"), resolve_secret(password, "schema-registry")


def _build_tls_context(parts: SplitResult) -> ssl.SSLContext:
    files = dict(parse_qsl(parts.query))
    unknown = sorted(set(files) - set(_FILES))
    if unknown:
        raise ConfigError(
            "a schema registry's URL has unknown parameters",
            where={"parameters": ",".join(unknown)},
            hint=f"known here: {', '.join(_FILES)}",
        )
    try:
        context = ssl.create_default_context(cafile=files.get("ca"))
        if "cert" in files:
            context.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:
        raise ConfigError(
            f"a certificate for the schema registry cannot be read: {error}", where=files, hint="name PEM files"
        ) from error
    return context
