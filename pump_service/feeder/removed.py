"""Sources that are no longer in the configuration: nothing that they left open blocks the other sources.

An unfinished load is rolled back as a whole, in one durable step: if the source returns under its name, the load starts
again. A source past its load keeps its position and resumes there when it returns; what it left open is decided as for
any source at a start: commits in the journal are resent, everything else is rolled back. The status port answers for
both as long as the journal knows them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import structlog

from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.snapshot.loadstate import build_load_facts, build_outdated_facts, read_load_record
from binlake.pump_service.feeder.status import describe_position

log = structlog.get_logger()

FLAVOR = "flavor of "
"""Prefix of the fact, completed by the source's name, that the journal has before anything of it is prewritten."""
_ENDED = "ended load of "
_SHOWN = ("rows", "tables", "tables_done")


def list_known_sources(journal: FeederJournal) -> frozenset[str]:
    """Every source for which this journal may have prewritten something."""
    return frozenset(journal.read_facts_with_prefix(FLAVOR)) | frozenset(journal.read_positions())


def list_removed_sources(journal: FeederJournal, named: Collection[str]) -> list[str]:
    """The known sources that are not among `named`, the configured ones."""
    return sorted(list_known_sources(journal).difference(named))


def roll_back_removed_loads(journal: FeederJournal, named: Collection[str]) -> None:
    """Roll back the unfinished loads of removed sources, durably and once; call it before the publisher tells the
    pumps what was left open."""
    for source in list_removed_sources(journal, named):
        load = read_load_record(journal, source)
        if load.get("state") != "loading":
            log.info("source_not_configured", source=source, has_place=source in journal.read_positions())
            continue
        shown = {name: load[name] for name in _SHOWN if name in load}
        facts = build_load_facts(source, {}) | build_outdated_facts(journal, source)
        count = journal.roll_back_load(source, {_ENDED + source: json.dumps(shown), **facts})
        log.warning(
            "load_of_removed_source_rolled_back", source=source, transactions=count, **shown,
            reason="it is not in the configuration; it is loaded again if it is configured again",
        )  # fmt: skip


def describe_removed(journal: FeederJournal, named: Collection[str]) -> list[dict[str, Any]]:
    """The removed sources for the page `/feeder`: positions and loads; state `rolled back`: rolled back by removal."""
    positions, ended = journal.read_positions(), journal.read_facts_with_prefix(_ENDED)
    removed = []
    for source in list_removed_sources(journal, named):
        load = read_load_record(journal, source)
        if not load and source in ended:
            load = {"state": "rolled back", **json.loads(ended[source])}
        description = {"source": source, "state": "removed", **describe_position(positions.get(source))}
        removed.append(description | ({"load": load} if load else {}))
    return removed
