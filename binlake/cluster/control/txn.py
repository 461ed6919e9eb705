"""`binlake txn`: shows a pump's binlogs; decides a transaction whose outcome no source can report (hazards R-07)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from binlake.cluster.control.commands import add_cluster, add_option, add_token, build_tls, open_registry, read_token
from binlake.cluster.control.nodes import ask_node as ask
from binlake.cluster.placement.registry import PUMPS, build_unknown_node_error
from binlake.common.commandline import add_output
from binlake.errors import BinlakeError, ConfigError, Permanent


class TxnCommand:
    """Show a stored binlog, or decide an orphan prewrite."""

    examples = (
        "binlake txn show 470548480035651584 --pump pump-1",
        "binlake txn list --pump pump-1",
        "binlake txn resolve 470548480035651584 --rolled-back --pump pump-1 --token-file admin-token",
        "binlake txn give-up 470548480035651584 --commit-ts 470548480035651600 --pump pump-1 --accept-loss",
    )
    help = "show a stored binlog; decide a prewrite whose outcome no source can report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `show TS`, `list`, `resolve START_TS...` and `give-up START_TS`."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        show = actions.add_parser("show", help="print a binlog: a prewrite by its start_ts, a commit by its commit_ts")
        show.add_argument("ts", type=_parse_ts, help="its key")
        waiting = actions.add_parser(
            "list", help="list the prewrites without a commit or rollback, the blocking one first"
        )
        for command in (show, waiting):
            add_output(command)
        resolve = actions.add_parser("resolve", help="decide the outcome of transactions; this cannot be undone")
        resolve.add_argument(
            "ts",
            type=_parse_ts,
            nargs="+",
            metavar="START_TS",
            help="start_ts of prewrites without a commit or rollback",
        )
        outcome = resolve.add_mutually_exclusive_group(required=True)
        outcome.add_argument(
            "--commit-ts", type=_parse_ts, metavar="TS", help="the transaction committed at TS (only with one START_TS)"
        )
        outcome.add_argument(
            "--rolled-back", action="store_true", help="the transactions were rolled back: drop their rows"
        )
        give_up = actions.add_parser("give-up", help="skip a commit whose prewrite is lost; this cannot be undone")
        give_up.add_argument(
            "ts",
            type=_parse_ts,
            metavar="START_TS",
            help="the start_ts of the transaction, as the failing pull reports it",
        )
        give_up.add_argument("--commit-ts", type=_parse_ts, required=True, metavar="TS", help="its commit_ts")
        give_up.add_argument(
            "--accept-loss", action="store_true", help="confirm the loss of its rows, unless another pump has them"
        )
        for command in (resolve, give_up):
            add_token(command)
        for command in (show, waiting, resolve, give_up):
            add_cluster(command)
            add_option(command, "pump", required=True, metavar="NODE", help="node id of the pump that stores it")

    def run(self, args: argparse.Namespace) -> int:
        """Send the request to the pump, and print the answer."""
        with open_registry(args) as registry:
            entry = registry.find_pump(args.pump)
        if entry is None:
            raise build_unknown_node_error(PUMPS + args.pump)
        actions = {"show": _show, "list": _list, "resolve": _resolve, "give-up": _give_up}
        return actions[args.action](args, entry.status.host)


def _show(args: argparse.Namespace, host: str) -> int:
    binlog = ask("GET", host, f"/debug/binlog/{args.ts}?format=json", build_tls(args))["data"]
    print(json.dumps(binlog) if args.output == "json" else _describe(binlog))
    return 0


def _list(args: argparse.Namespace, host: str) -> int:
    prewrites = ask("GET", host, "/txn", build_tls(args))["data"]
    if args.output == "json":
        print(json.dumps(prewrites))
        return 0
    for prewrite in prewrites:
        print(
            f"start_ts {prewrite['start_ts']}  {prewrite['age_s']} s  key {prewrite['key']}"
            f"  {prewrite['reason']}".rstrip()
        )
    print(f"{len(prewrites)} prewrites have no commit or rollback")
    return 0


def _resolve(args: argparse.Namespace, host: str) -> int:
    if args.commit_ts and len(args.ts) > 1:
        raise ConfigError("a commit_ts belongs to only one transaction", hint="name one START_TS, or use --rolled-back")
    outcome = "rollback" if args.rolled_back else f"commit/{args.commit_ts}"
    token, refused = read_token(args), list[BinlakeError]()
    for ts in args.ts:
        try:
            print(ask("PUT", host, f"/txn/{ts}/{outcome}", build_tls(args), token=token)["message"])
        except Permanent as error:
            if len(args.ts) == 1:
                raise
            refused.append(error)
            print(f"transaction {ts} was not decided: {error.message}")
    if len(args.ts) > 1:
        print(f"{len(args.ts) - len(refused)} decided, {len(refused)} refused")
    return int(bool(refused))


def _give_up(args: argparse.Namespace, host: str) -> int:
    if not args.accept_loss:
        print(
            f"the rows of transaction {args.ts} (commit_ts {args.commit_ts}) are not in this pump: if no other pump has"
            " them they will be missing downstream. Use --accept-loss to confirm"
        )
        return 1
    path = f"/txn/{args.ts}/give-up/{args.commit_ts}"
    print(ask("PUT", host, path, build_tls(args), token=read_token(args))["message"])
    return 0


def _describe(binlog: dict[str, Any]) -> str:
    lines = [f"{name}: {binlog[name]}" for name in ("type", "start_ts", "commit_ts", "bytes", "schema_version")]
    if binlog["ddl_job_id"]:
        lines.append(f"DDL job {binlog['ddl_job_id']}: {binlog['ddl_query']}")
    for table in binlog["tables"]:
        lines.append(
            f"table {table['table_id']}: {table['inserted']} inserted, {table['updated']} updated,"
            f" {table['deleted']} deleted"
        )
    return "\n".join(lines)


def _parse_ts(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is not a timestamp")
    return int(text)
