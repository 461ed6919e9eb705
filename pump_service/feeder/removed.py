"""Sources that the configuration does not name any more: nothing that they left open stands in the way of the others.

A load that did not end is rolled back whole, in one durable step: if the source comes back under its name it begins
again. A source past its load has its place, and is read on from there when it comes back; what it left is decided as
that of any source at a start: the commits in the journal are sent again, all else is rolled back. The status port
answers for both as long as the journal knows them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import structlog

from pump_service.feeder.journal import Journal
from pump_service.feeder.snapshot.kept import load_record, record_facts
from pump_service.feeder.status import describe_place

log = structlog.get_logger()

FLAVOR = "flavor of "
"""With the name of a source: the fact that the journal has of it before anything of it is prewritten."""
_ENDED = "ended load of "
_SHOWN = ("rows", "tables", "tables_done")


def known_sources(journal: Journal) -> frozenset[str]:
    """Every source of which this journal may have prewritten something."""
    return frozenset(journal.facts_like(FLAVOR)) | frozenset(journal.places())


def removed_sources(journal: Journal, named: Collection[str]) -> list[str]:
    """The known sources that are not among `named`, those of the configuration."""
    return sorted(known_sources(journal).difference(named))


def end_removed_loads(journal: Journal, named: Collection[str]) -> None:
    """Roll back the loads of removed sources that did not end, durably and once; call it before the publisher tells the
    pumps what was left."""
    for source in removed_sources(journal, named):
        load = load_record(journal, source)
        if load.get("state") != "loading":
            log.info("source_not_configured", source=source, has_place=source in journal.places())
            continue
        shown = {name: load[name] for name in _SHOWN if name in load}
        count = journal.end_load(source, {_ENDED + source: json.dumps(shown), **record_facts(source, {})})
        log.warning(
            "load_of_removed_source_rolled_back", source=source, transactions=count, **shown,
            reason="the configuration does not name it; it is loaded anew if it does so again",
        )  # fmt: skip


def describe_removed(journal: Journal, named: Collection[str]) -> list[dict[str, Any]]:
    """The removed sources for the page `/feeder`: their places, their loads; `rolled back`: one that was ended here."""
    places, ended = journal.places(), journal.facts_like(_ENDED)
    removed = []
    for source in removed_sources(journal, named):
        load = load_record(journal, source)
        if not load and source in ended:
            load = {"state": "rolled back", **json.loads(ended[source])}
        description = {"source": source, "state": "removed", **describe_place(places.get(source))}
        removed.append(description | ({"load": load} if load else {}))
    return removed
