"""`binlake changefeed create|list|query|pause|resume|update|remove`, with the flags of `cdc cli changefeed`."""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlake import tso
from binlake.common.commandline import add_output, read_moment
from binlake.common.terminal import print_table
from binlake.config.feed import FeedSection
from binlake.config.model import Replication
from binlake.config.sidefiles import write_feed_file
from binlake.config.sinkuri import mask_credentials, mask_sink_uri
from binlake.errors import ConfigError, Permanent
from binlake.extras.changefeed import actions
from binlake.extras.changefeed.actions import LoadedReplication, find_replication_file
from binlake.extras.changefeed.section import build_section, dump_section_keys
from binlake.feed.checks import FeedReport
from binlake.feed.state import FeedProgress, FeedState, read_progress, read_state, record_pause, record_resume
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog


def summarize_feed(replication: Replication, feed: FeedSection) -> dict[str, Any]:
    """The feed as shown by `list`: id and namespace, state, checkpoint, lag, error."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {
        "id": feed.name,
        "namespace": feed.namespace,
        "replication": replication.name,
        "summary": {
            "state": choose_visible_state(state),
            "tso": _format_ts(progress.checkpoint),
            "checkpoint": _format_time(progress.checkpoint),
            "lag_s": progress.lag_s,
            "error": _describe_error(state),
        },
    }


def describe_feed(replication: Replication, feed: FeedSection) -> dict[str, Any]:
    """The feed as shown by `query`: section, progress, state and reason."""
    windows = WindowLog(LakePaths.of(replication))
    state, progress = read_state(windows, feed.name), read_progress(windows, feed.name, feed.first_ts)
    return {
        **describe_section(feed),
        "replication": replication.name,
        **_describe_progress(progress),
        **_describe_state(state),
    }


def describe_section(feed: FeedSection) -> dict[str, Any]:
    """The section as printed by `create`."""
    config = {"rules": list(feed.rules), "dispatchers": [rule.model_dump(mode="json") for rule in feed.dispatchers]}
    return {
        "id": feed.name,
        "namespace": feed.namespace,
        "sink_uri": mask_sink_uri(feed.sink_uri),
        "schema_registry": mask_credentials(feed.schema_registry),
        "start_ts": feed.start_ts,
        "target_ts": feed.target_ts,
        "config": {**config, "time_zone": feed.time_zone, "transactions": feed.transactions},
    }


def choose_visible_state(state: FeedState) -> str:
    """The state of a configured feed: a removed feed with its name was another feed."""
    return "normal" if state.state == "removed" else state.state


def _describe_progress(progress: FeedProgress) -> dict[str, Any]:
    values = {"checkpoint_tso": progress.checkpoint, "encoded_tso": progress.encoded, "landed_tso": progress.landed}
    times = {"checkpoint_time": _format_time(progress.checkpoint), "lag_s": progress.lag_s}
    return {name: _format_ts(ts) for name, ts in values.items()} | times


def _describe_state(state: FeedState) -> dict[str, Any]:
    values = {"state": choose_visible_state(state), "reason": state.reason}
    return values | {"error": _describe_error(state)}


def _describe_error(state: FeedState) -> dict[str, Any] | None:
    error = state.error
    if error is None:
        return None
    return {"stage": error.stage, "code": error.error, "message": error.text, "hint": error.hint, **error.where}


def _format_ts(ts: int | None) -> str | None:
    return None if ts is None else str(ts)


def _format_time(ts: int | None) -> str | None:
    return None if ts is None else tso.to_datetime(ts).isoformat(sep=" ", timespec="milliseconds")


class ChangefeedCommand:
    """Create and control feeds."""

    examples = (
        "binlake changefeed create -c kafka-avro --sink-uri 'kafka://127.0.0.1:9092/?protocol=avro'"
        " --schema-registry http://127.0.0.1:8081 --replication orders.toml",
        "binlake changefeed list --replication orders.toml",
        "binlake changefeed query -c kafka-avro -s --replication orders.toml",
        "binlake changefeed pause -c kafka-avro --reason 'the topic is moved' --replication orders.toml",
        "binlake changefeed resume -c kafka-avro --replication orders.toml",
        "binlake changefeed update -c kafka-avro --tz Europe/Berlin --replication orders.toml",
        "binlake changefeed remove -c kafka-avro --replication orders.toml",
    )
    help = "create, list, query, pause, resume, update or remove feeds (changefeeds)"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the actions, each with the flags of `cdc cli changefeed`."""
        parsers = parser.add_subparsers(dest="action", required=True)
        for name, text in _ACTIONS.items():
            command = parsers.add_parser(name, help=text, allow_abbrev=False)
            command.add_argument(
                "--pd", default="", metavar="URLS", help="use the replication whose source has this PD"
            )
            command.add_argument(
                "--replication", default="", metavar="FILE", help="the replication's TOML, instead of --pd"
            )
            add_output(command)
            if name != "list":
                command.add_argument("-c", "--changefeed-id", default="", required=name != "create", metavar="ID",
                                     help="the feed's name; create generates one if omitted")  # fmt: skip
            if name in ("create", "update"):
                _add_section(command, required=name == "create")
            if name in ("create", "update", "resume", "remove"):
                command.add_argument("--no-confirm", action="store_true", help="do not ask for confirmation")
            if name in ("create", "update", "resume"):
                command.add_argument(
                    "--unreachable-ok", action="store_true", help="continue even if brokers or registry do not answer"
                )
            if name in ("pause", "resume"):
                command.add_argument("--reason", default="", help="the reason, shown with the feed's state")
            if name == "resume":
                command.add_argument("--overwrite-checkpoint-ts", type=_read_moment_or_now, metavar="TS",
                                     help="continue after this commit_ts, or `now`, whatever was sent")  # fmt: skip
                command.add_argument(
                    "--adopt-position", action="store_true", help="believe the sink's position, though it was changed"
                )
            if name == "query":
                command.add_argument("-s", "--simple", action="store_true", help="show only state and checkpoint")
            if name == "remove":
                command.add_argument(
                    "-f", "--force", action="store_true", help="remove it even if its sink does not answer"
                )

    def run(self, args: argparse.Namespace) -> int:
        """Execute the action and print the result. Raises BinlakeError."""
        act: Mapping[str, Callable[[LoadedReplication, argparse.Namespace], None]] = {
            "create": _create, "list": _list, "query": _query, "pause": _pause, "resume": _resume, "update": _update,
            "remove": _remove,
        }  # fmt: skip
        act[args.action](find_replication_file(args.pd, args.replication), args)
        return 0


_ACTIONS = {
    "create": "add a feed to a replication",
    "list": "show the feeds of a replication: state, checkpoint, lag, error",
    "query": "show one feed: its section, progress and state",
    "pause": "stop a feed until it is resumed",
    "resume": "let a feed continue from its checkpoint",
    "update": "change a stopped feed",
    "remove": "remove a feed",
}


def _add_section(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--sink-uri", required=required, metavar="URI", help="kafka://host:port/topic?protocol=avro&…")
    parser.add_argument("--schema-registry", metavar="URL", help="the schema registry, http(s)://[user:password@]host")
    parser.add_argument("--config", default="", metavar="FILE", help="TiCDC's changefeed configuration, TOML")
    parser.add_argument("--target-ts", type=read_moment, metavar="TS", help="last commit_ts to send; default: no end")
    parser.add_argument("--tz", metavar="ZONE", help="time zone of TIMESTAMP values (default UTC)")
    if required:
        parser.add_argument(
            "--start-ts", type=read_moment, default=0, metavar="TS", help="commit_ts after which it begins"
        )
        parser.add_argument("-n", "--namespace", metavar="NAME", help="first part of Avro's namespace")


def _read_moment_or_now(text: str) -> int:
    return 0 if text == "now" else read_moment(text)


def _create(file: LoadedReplication, args: argparse.Namespace) -> None:
    options = _read_options(args) | {"name": args.changefeed_id or str(uuid.uuid4())}
    feed = build_section(options, args.config)
    start = actions.start_ts_of(file, args.start_ts)
    if start:
        feed = build_section(options | {"start-ts": start}, args.config)
    report = actions.check_feed(file, feed, unreachable_ok=args.unreachable_ok)
    path = actions.store_new_feed(file, feed)
    _show_warnings(report)
    summary = describe_section(feed) | {"replication": file.replication.name, "file": str(path)}
    if args.output == "json":
        print(json.dumps(summary))
        return
    print(f"Create changefeed successfully!\nID: {feed.name}\nInfo: {json.dumps(summary)}")


def _list(file: LoadedReplication, args: argparse.Namespace) -> None:
    feeds = [summarize_feed(file.replication, feed) for feed in file.replication.feed]
    if args.output == "json":
        print(json.dumps(feeds))
        return
    if not feeds:
        print(f"{file.replication.name} has no changefeed")
        return
    rows = [[feed["id"], *_list_cells(feed["summary"])] for feed in feeds]
    print_table(("id", "state", "checkpoint", "commit time", "lag s", "error"), rows, whole=("checkpoint",))


def _query(file: LoadedReplication, args: argparse.Namespace) -> None:
    feed = file.replication.require_feed(args.changefeed_id)
    info = summarize_feed(file.replication, feed)["summary"] if args.simple else describe_feed(file.replication, feed)
    print(json.dumps(info, indent=None if args.output == "json" else 2, ensure_ascii=False))


def _pause(file: LoadedReplication, args: argparse.Namespace) -> None:
    feed = file.replication.require_feed(args.changefeed_id)
    windows = actions.open_window_log(file.replication)
    _require_state(read_state(windows, feed.name), feed.name, ("normal", "removed", "stopped", "error"), "paused")
    record_pause(windows, feed.name, reason=args.reason or "paused by command")
    _print_state(args, file, feed, "is stopped; changes committed meanwhile are sent after `resume`")


def _resume(file: LoadedReplication, args: argparse.Namespace) -> None:
    feed = file.replication.require_feed(args.changefeed_id)
    windows = actions.open_window_log(file.replication)
    if args.overwrite_checkpoint_ts is not None:
        path = actions.require_own_file(file, feed.name)
        feed = actions.move_feed(file, feed, path, actions.start_ts_of(file, args.overwrite_checkpoint_ts))
    state = read_state(windows, feed.name)
    if state.state == "finished" and _is_past_target(file, feed):
        raise Permanent(
            "the changefeed has reached its target-ts", where={"id": feed.name, "target_ts": feed.target_ts},
            hint="set a later one: `binlake changefeed update --target-ts`",
        )  # fmt: skip
    feed.require_rules()
    _show_warnings(actions.check_feed(file, feed, unreachable_ok=args.unreachable_ok))
    if args.adopt_position:
        actions.adopt_sink_position(file, feed)
    if not state.works or args.overwrite_checkpoint_ts is not None:
        record_resume(windows, feed.name, reason=args.reason or "resumed by command")
    _print_state(args, file, feed, "is normal and continues with the next window")


def _is_past_target(file: LoadedReplication, feed: FeedSection) -> bool:
    checkpoint = summarize_feed(file.replication, feed)["summary"]["tso"]
    return bool(feed.target_ts) and int(checkpoint or 0) >= int(feed.target_ts)


def _update(file: LoadedReplication, args: argparse.Namespace) -> None:
    feed = file.replication.require_feed(args.changefeed_id)
    path = actions.require_own_file(file, feed.name)
    windows = actions.open_window_log(file.replication)
    if windows.exists():
        _require_state(read_state(windows, feed.name), feed.name, ("stopped", "error", "finished"), "updated")
    changed = build_section(_read_options(args), args.config, dump_section_keys(feed))
    changes = list(_list_changes(describe_section(feed), describe_section(changed)))
    if dump_section_keys(changed) == dump_section_keys(feed):
        raise ConfigError("the update changes nothing", where={"id": feed.name}, hint="see `binlake changefeed query`")
    report = actions.check_feed(file, changed, unreachable_ok=args.unreachable_ok)
    if not args.no_confirm:
        _confirm("\n".join(changes or ["a password changes"]), feed.name)
    write_feed_file(path, changed)
    _show_warnings(report)
    _print_state(args, file, changed, "is updated; `resume` lets it continue")


def _remove(file: LoadedReplication, args: argparse.Namespace) -> None:
    feed = file.replication.require_feed(args.changefeed_id)
    stays = actions.remove_feed(file, feed, actions.require_own_file(file, feed.name), force=args.force)
    checkpoint = {"id": feed.name, "sink_uri": describe_section(feed)["sink_uri"], "stays": stays}
    if args.output == "json":
        print(json.dumps(checkpoint))
        return
    print(f"Changefeed remove successfully.\nID: {feed.name}\nSinkURI: {checkpoint['sink_uri']}")
    print(f"What stays: {'; '.join(stays)}")


def _read_options(args: argparse.Namespace) -> dict[str, Any]:
    """The command's options as keys of a section."""
    names = {"sink_uri": "sink-uri", "schema_registry": "schema-registry", "namespace": "namespace", "tz": "time-zone"}
    options = {key: getattr(args, name, None) for name, key in names.items()}
    options["target-ts"] = None if args.target_ts is None else str(args.target_ts or "")
    return {key: value for key, value in options.items() if value is not None}


def _require_state(state: FeedState, feed: str, allowed: Sequence[str], what: str) -> None:
    if state.state not in allowed:
        hint = f"`binlake changefeed pause -c {feed}` first" if what == "updated" else ""
        raise Permanent(
            f"a changefeed in state {state.state} is not {what}", where={"id": feed, "state": state.state}, hint=hint
        )


def _list_changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for each difference."""
    changes: list[str] = []
    for key, value in after.items():
        if isinstance(value, Mapping):
            changes += _list_changes(before[key], value, f"{prefix}{key}.")
        elif before[key] != value:
            changes.append(f"{prefix}{key}: {before[key]} -> {value}")
    return changes


def _confirm(changes: str, feed: str) -> None:
    print(changes, file=sys.stderr)
    print(f"Could you agree to apply these changes to changefeed {feed} [Y/N]? ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was changed", where={"id": feed}, hint="answer Y, or pass --no-confirm")


def _show_warnings(report: FeedReport) -> None:
    for text in report.warnings:
        print(f"warning: {text}", file=sys.stderr)


def _print_state(args: argparse.Namespace, file: LoadedReplication, feed: FeedSection, what: str) -> None:
    if args.output == "json":
        print(json.dumps(summarize_feed(file.replication, feed)))
        return
    print(f"changefeed {feed.name} of {file.replication.name} {what}")


def _list_cells(summary: Mapping[str, Any]) -> list[str]:
    error = summary["error"]
    lag = "" if summary["lag_s"] is None else f"{summary['lag_s']:.1f}"
    why = f"{error['stage']}: {error['message']}" if error else ""
    return [summary["state"], summary["tso"] or "", summary["checkpoint"] or "", lag, why]
