"""The tables set aside at the target according to recorded events, and those not recorded yet (U-16)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from binlake.rows.schema.forms import fold_name
from binlake.window.eventrow import EventRow

STAGE = "aside"
"""Events of this stage in the table `window`: `set-aside` and `back`, each of one table."""
SET_ASIDE, BACK = "set-aside", "back"


def list_set_aside(events: Sequence[EventRow]) -> list[dict[str, str]]:
    """The tables that are set aside after `events` of this stage (in order of time), as their events' details."""
    aside: dict[str, dict[str, str]] = {}
    for event in events:
        detail = json.loads(event["detail"])
        aside.pop(fold_name(detail["table"]), None)
        if event["state"] == SET_ASIDE:
            aside[fold_name(detail["table"])] = detail
    return list(aside.values())


def list_unrecorded(tables: Sequence[Mapping[str, str]], events: Sequence[EventRow]) -> list[Mapping[str, str]]:
    """Those of `tables` (as `AsideTable.to_dict` gives them) that `events` do not record yet."""
    recorded = {_build_event_key(json.loads(event["detail"])) for event in events if event["state"] == SET_ASIDE}
    return [table for table in tables if _build_event_key(table) not in recorded]


def _build_event_key(table: Mapping[str, str]) -> tuple[str, str, str]:
    return fold_name(table["table"]), table["since"], table["at"]
