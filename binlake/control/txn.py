"""`binlake txn`: what a pump holds of a transaction, and deciding one that no source can tell (hazards R-07)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from binlake.control.commands import add_cluster, add_option, add_token, open_registry, tls_of, token_of
from binlake.control.http import ask
from binlake.placement.registry import PUMPS, unknown_node


class TxnCommand:
    """Look at a stored binlog, or decide an orphan prewrite."""

    help = "show a stored binlog; decide a prewrite whose outcome no source can tell"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """`show TS` and `resolve START_TS`."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        show = actions.add_parser("show", help="a binlog in words: start_ts for P, commit_ts for C")
        show.add_argument("ts", type=_ts, help="its key")
        show.add_argument("--json", action="store_true", help="print JSON; timestamps are strings")
        resolve = actions.add_parser("resolve", help="decide what became of a transaction; nothing can take it back")
        resolve.add_argument("ts", type=_ts, metavar="START_TS", help="start_ts of the P that blocks")
        outcome = resolve.add_mutually_exclusive_group(required=True)
        outcome.add_argument("--commit-ts", type=_ts, metavar="TS", help="it committed at TS")
        outcome.add_argument("--rolled-back", action="store_true", help="it was rolled back: its rows are dropped")
        add_token(resolve)
        for one in (show, resolve):
            add_cluster(one)
            add_option(one, "pump", required=True, metavar="NODE", help="node id of the pump that holds it")

    def run(self, args: argparse.Namespace) -> int:
        """Ask the pump."""
        with open_registry(args) as registry:
            entry = registry.pump(args.pump)
        if entry is None:
            raise unknown_node(PUMPS + args.pump)
        own = tls_of(args)
        if args.action == "show":
            found = ask("GET", entry.status.host, f"/debug/binlog/{args.ts}?format=json", own)["data"]
            print(json.dumps(found) if args.json else _words(found))
            return 0
        outcome = "rollback" if args.rolled_back else f"commit/{args.commit_ts}"
        print(ask("PUT", entry.status.host, f"/txn/{args.ts}/{outcome}", own, token=token_of(args))["message"])
        return 0


def _words(found: dict[str, Any]) -> str:
    lines = [f"{name}: {found[name]}" for name in ("type", "start_ts", "commit_ts", "bytes", "schema_version")]
    if found["ddl_job_id"]:
        lines.append(f"DDL job {found['ddl_job_id']}: {found['ddl_query']}")
    for one in found["tables"]:
        lines.append(
            f"table {one['table_id']}: {one['inserted']} inserted, {one['updated']} updated, {one['deleted']} deleted"
        )
    return "\n".join(lines)


def _ts(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is no timestamp")
    return int(text)
