"""Which replication a changefeed belongs to: that of the file given, or the one whose source has the PD given."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from binlake.config.folder import find_replications, replications_folder
from binlake.config.load import load_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError

_PD_PORT = 2379


class Place(NamedTuple):
    """A replication and its file."""

    file: Path
    replication: Replication


def find_replication_of(pd: str, file: str) -> Place:
    """The replication of `--replication FILE`, or of `--pd URLS`; without either the only one of the folder.

    Raises ConfigError where none fits, or several.
    """
    if file:
        place = Place(Path(file), load_replication(file, secrets=False))
        if pd and not _shared(pd, place.replication):
            raise ConfigError(
                "the replication has another PD", where={"pd": pd, "replication": place.replication.name,
                "pd-urls": ",".join(place.replication.source.pd_urls)}, hint="leave --pd out",
            )  # fmt: skip
        return place
    found = find_replications()
    fitting = [Place(*item) for item in found.good.items() if not pd or _shared(pd, item[1])]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(place.replication.name for place in fitting)
    broken = f"; not readable: {', '.join(path.name for path in found.broken)}" if found.broken else ""
    raise ConfigError(
        "several replications have this PD" if fitting else "no replication has this PD",
        where={"pd": pd or "any", "folder": replications_folder(), "found": names or "none"},
        hint=f"name its file: --replication FILE{broken}",
    )


def _shared(pd: str, replication: Replication) -> bool:
    own = {_address(url) for url in replication.source.pd_urls}
    return not own.isdisjoint(_address(url) for url in pd.split(",") if url.strip())


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url.strip() if "://" in url else f"http://{url.strip()}")
        return (parts.hostname or "").lower(), parts.port or _PD_PORT
    except ValueError as error:
        raise ConfigError(f"--pd is not an address: {error}", hint="http://127.0.0.1:2379") from None
