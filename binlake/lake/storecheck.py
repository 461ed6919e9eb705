"""Tries what a lake asks of an object store, before the first window does: for `binlake config check` and `doctor`.

One small object is written below the lake's folder, and deleted: put, conditional puts that must be refused and one
that must not, list, delete.
"""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from binlake.cluster.control import config
from binlake.config.model import Replication
from binlake.errors import BinlakeError, ConfigError, Permanent, Transient
from binlake.lake.access import find_access, find_provider, is_remote
from binlake.lake.damage import describe_storage_text
from binlake.lake.objects import open_objects
from binlake.lake.paths import LakePaths

if TYPE_CHECKING:
    from binlake.lake.access import Objects

_RETRY_S = 5.0
_CONDITIONAL = "use a store, or a version of it, with conditional writes; AWS S3 and Azure have them"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_CREDENTIALS = ("instance metadata", "metadata endpoint", "CredentialsProvider", "169.254.169.254")
"""Words in the error of a client that found no credentials and asked the machine for its role."""


def try_store(paths: LakePaths) -> None:
    """Require that the store serves a lake at `paths`. Raises ConfigError, Permanent, Transient."""
    import obstore

    objects = open_objects(paths.root, _RETRY_S)
    name = f"_check/{uuid.uuid4().hex}"
    with _explain(paths, "put objects"):
        tag = obstore.put(objects, name, b"1")["e_tag"]
    try:
        _try_conditions(objects, paths, name, tag)
        _try_list(objects, paths, name)
    except BinlakeError:
        _delete_quietly(objects, name)
        raise
    with _explain(paths, "delete objects"):
        _delete(objects, name)


def _try_conditions(objects: Objects, paths: LakePaths, name: str, tag: str | None) -> None:
    with _explain(paths, "put objects on a condition"):
        is_made_again = _may_put(objects, name, None)
        is_lost = _may_put(objects, name, find_provider(paths.root).no_match)
        is_changed = tag is not None and _may_put(objects, name, tag)
    if is_made_again or is_lost or not is_changed:
        header = "If-None-Match" if is_made_again else "If-Match"
        ignored = is_made_again or is_lost
        raise ConfigError(
            f"the lake's object store {'ignores' if ignored else 'does not know'} the condition of a put ({header}):"
            " two writers could overwrite each other's commits",
            where=_locate(paths),
            hint=_CONDITIONAL,
        )


def _try_list(objects: Objects, paths: LakePaths, name: str) -> None:
    with _explain(paths, "list objects"):
        found = [one["path"] for page in objects.list("_check") for one in page]
    if name not in found:
        raise ConfigError(
            "the lake's object store does not list an object that was just written",
            where=_locate(paths),
            hint="use a store whose lists are up to date, as AWS's are",
        )


def _may_put(objects: Objects, name: str, tag: str | None) -> bool:
    """Whether the store accepts a put of an existing object: only if it has `tag`, or if it is new (None)."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    try:
        obstore.put(objects, name, b"2", mode="create" if tag is None else {"e_tag": tag})
    except (AlreadyExistsError, PreconditionError):
        return False
    return True


def _delete(objects: Objects, name: str) -> None:
    import obstore

    obstore.delete(objects, name)


def _delete_quietly(objects: Objects, name: str) -> None:
    """Delete what an earlier step left; its error is the one to tell."""
    from obstore.exceptions import BaseError

    try:
        _delete(objects, name)
    except BaseError:
        return


@contextmanager
def _explain(paths: LakePaths, what: str) -> Iterator[None]:
    """While it is tried to `what`: raise the store's errors in our words."""
    from obstore.exceptions import BaseError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(
            f"the lake's object store has no such {find_provider(paths.root).bucket}",
            where=_locate(paths),
            hint="create it, or correct `lake.path` and `lake.storage`",
        ) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise Permanent(
            f"the lake's object store refuses to {what}: {_describe(error)}",
            where=_locate(paths),
            hint=f"check {find_provider(paths.root).credentials}: it must list, get, put and delete below that prefix",
        ) from error
    except NotSupportedError as error:
        raise ConfigError(
            f"the lake's object store does not know how to {what}",
            where=_locate(paths),
            hint=_CONDITIONAL,
        ) from error
    except BaseError as error:
        if any(word in str(error) for word in _NO_CREDENTIALS):
            raise Permanent(
                "there are no credentials for the lake's object store",
                where=_locate(paths),
                hint=f"set {find_provider(paths.root).credentials}",
            ) from error
        raise Transient(
            f"the lake's object store does not answer: {_describe(error)}",
            where=_locate(paths),
            hint="check `lake.storage` and that the store is reachable from here",
        ) from error


def _describe(error: Exception) -> str:
    """The store's own code, such as AccessDenied, if it gave one."""
    code = _CODE.search(str(error))
    return code[1] if code is not None else describe_storage_text(error)


def _locate(paths: LakePaths) -> dict[str, str]:
    return {"lake": paths.root, "endpoint": find_access(paths.root).endpoint or find_provider(paths.root).title}


class LakeConfigCommand(config.SourceConfigCommand):
    """Check a replication file and, of a lake in an object store, the store; or print the reference of all keys."""

    def check(self, args: argparse.Namespace) -> Replication:
        """The replication of the checked file. Raises ConfigError, and what trying the store raises."""
        replication = super().check(args)
        paths = LakePaths.of(replication)
        if is_remote(paths.root):
            try_store(paths)
        return replication
