"""Finds the replication of a changefeed by its file or by the PD of its source."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from binlake.config.load import find_replications, find_replications_folder, load_replication
from binlake.config.model import Replication
from binlake.errors import ConfigError

_PD_PORT = 2379


class LoadedReplication(NamedTuple):
    """A replication and its file."""

    file: Path
    replication: Replication


def find_replication_file(pd: str, file: str) -> LoadedReplication:
    """The replication of `--replication FILE` or of `--pd URLS`; without both, the only one in the folder.

    Raises ConfigError unless exactly one matches.
    """
    if file:
        chosen = LoadedReplication(Path(file), load_replication(file, secrets=False))
        if pd and not _shares_pd(pd, chosen.replication):
            raise ConfigError(
                "the replication has another PD", where={"pd": pd, "replication": chosen.replication.name,
                "pd-urls": ",".join(chosen.replication.source.pd_urls)}, hint="omit --pd",
            )  # fmt: skip
        return chosen
    folder = find_replications()
    matching = [LoadedReplication(*item) for item in folder.good.items() if not pd or _shares_pd(pd, item[1])]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(chosen.replication.name for chosen in matching)
    broken = f"; not readable: {', '.join(path.name for path in folder.broken)}" if folder.broken else ""
    raise ConfigError(
        "several replications have this PD" if matching else "no replication has this PD",
        where={"pd": pd or "any", "folder": find_replications_folder(), "found": names or "none"},
        hint=f"give its file: --replication FILE{broken}",
    )


def _shares_pd(pd: str, replication: Replication) -> bool:
    addresses = {_parse_address(url) for url in replication.source.pd_urls}
    return not addresses.isdisjoint(_parse_address(url) for url in pd.split(",") if url.strip())


def _parse_address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url.strip() if "://" in url else f"http://{url.strip()}")
        return (parts.hostname or "").lower(), parts.port or _PD_PORT
    except ValueError as error:
        raise ConfigError(f"--pd is not an address: {error}", hint="http://127.0.0.1:2379") from None
