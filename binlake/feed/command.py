"""`binlake feed read`: decodes the messages of a topic or of a feed's files, one per line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from binlake import tso
from binlake.common.commandline import add_output, parse_count, read_moment
from binlake.common.filestore import open_store
from binlake.common.terminal import escape_invisible
from binlake.config import load_replication
from binlake.config.feed import FeedSection
from binlake.config.sinkuri import SinkUri, parse_sink_uri
from binlake.errors import ConfigError, Permanent
from binlake.feed.reading.decoders import build_decoder
from binlake.feed.reading.events import MessageEvent
from binlake.feed.reading.files import read_files
from binlake.feed.reading.topic import read_topic
from binlake.feed.registry import SchemaRegistry


class FeedCommand:
    """Read the messages that a feed wrote."""

    examples = (
        "binlake feed read 'kafka://127.0.0.1:9092/shop?protocol=canal-json' --limit 10",
        "binlake feed read --feed kafka-avro --table shop.item --replication orders.toml",
    )
    help = "decode the messages of a feed's topic or files"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `read URI` and `read --replication FILE --feed NAME`."""
        read = parser.add_subparsers(dest="action", required=True).add_parser("read", help="print messages")
        read.add_argument(
            "uri", nargs="?", metavar="URI",
            help="kafka://host:port/topic?protocol=avro, file:///folder?protocol=canal-json, s3://bucket/prefix?...",
        )  # fmt: skip
        read.add_argument("--replication", type=Path, metavar="FILE", help="the replication's TOML, for --feed")
        read.add_argument("--feed", metavar="NAME", help="take URI, registry and topic from this feed")
        read.add_argument("--schema-registry", metavar="URL", help="the schema registry of messages in Avro")
        read.add_argument("--table", metavar="DB.TABLE", help="only this table; needed for a feed's topic")
        read.add_argument(
            "--from", dest="lo", type=read_moment, metavar="TS", help="only changes with commit_ts > TS (or a time)"
        )
        read.add_argument("--to", dest="hi", type=read_moment, metavar="TS", help="only changes with commit_ts <= TS")
        read.add_argument("--limit", type=parse_count, metavar="N", help="stop after N messages")
        add_output(read)

    def run(self, args: argparse.Namespace) -> int:
        """Print the events. Raises ConfigError, WireError, Permanent, Transient."""
        feed = _load_feed(args)
        uri = feed.sink if feed is not None else parse_sink_uri(args.uri)
        registry = args.schema_registry or (feed.schema_registry if feed is not None else "")
        table = _parse_table(args.table)
        events = _read_events(uri, registry, table, feed)
        selected = (event for event in events if _is_wanted(event, table, args.lo, args.hi))
        show = _show_json if args.output == "json" else _show_text
        try:
            for event in islice(selected, args.limit):
                print(show(event))
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe. Nothing may be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _load_feed(args: argparse.Namespace) -> FeedSection | None:
    named = args.replication is not None and args.feed is not None
    if named == (args.uri is not None) or (args.replication is None) != (args.feed is None):
        raise ConfigError("there is nothing to read", hint="give a URI, or --replication FILE and --feed NAME")
    return load_replication(args.replication).require_feed(args.feed) if named else None


def _read_events(
    uri: SinkUri, registry: str, table: tuple[str, str] | None, feed: FeedSection | None
) -> Iterator[MessageEvent]:
    if uri.storage is not None:
        options = uri.options if feed is None else feed.options
        yield from read_files(open_store(uri.storage), options, _is_table(table))
    elif uri.kafka is not None:
        topic = _require_topic(uri, table, feed)
        if registry:
            with SchemaRegistry(registry) as opened:
                decoder = build_decoder(uri.protocol, opened.fetch_schema)
                for record in read_topic(uri.kafka, topic):
                    yield from decoder(record)
        else:
            decoder = build_decoder(uri.protocol)
            for record in read_topic(uri.kafka, topic):
                yield from decoder(record)


def _require_topic(uri: SinkUri, table: tuple[str, str] | None, feed: FeedSection | None) -> str:
    if feed is None:
        if not uri.topic:
            raise ConfigError("the URI names no topic", hint="write kafka://host:port/topic?protocol=avro")
        return uri.topic
    if table is None:
        raise ConfigError("each table of a feed has its own topic", hint="select one with --table DB.TABLE")
    return feed.topics.find_topic(*table)


def _is_table(table: tuple[str, str] | None) -> Callable[[str, str], bool]:
    return lambda db, name: table is None or (db, name) == table


def _is_wanted(event: MessageEvent, table: tuple[str, str] | None, lo: int | None, hi: int | None) -> bool:
    if table is not None and event.op != "watermark" and (event.db, event.table) != table:
        return False
    if lo is None and hi is None:
        return True
    if event.commit_ts is None:
        raise Permanent(
            "a message has no commit_ts to compare with --from and --to",
            where={"at": event.place},
            hint="give the feed enable-tidb-extension=true (csv: include-commit-ts), or read without a range",
        )
    return (lo is None or event.commit_ts > lo) and (hi is None or event.commit_ts <= hi)


def _show_json(event: MessageEvent) -> str:
    return json.dumps(event.to_dict(), ensure_ascii=False)


def _show_text(event: MessageEvent) -> str:
    values = event.to_dict()
    rows = [_format_value(values.get(name)) for name in ("key", "value") if values.get(name) is not None]
    time = "" if event.commit_ts is None else tso.to_datetime(event.commit_ts).isoformat(" ", "milliseconds")
    table = f"{event.db}.{event.table}" if event.table else event.db
    return "  ".join([values.get("commit_ts", "-"), time or "-", event.op or "-", table or "-", *rows])


def _format_value(value: Any) -> str:
    return escape_invisible(json.dumps(value, ensure_ascii=False))


def _parse_table(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    db, _, table = text.partition(".")
    if not table:
        raise ConfigError(f"{text!r} does not name a table", hint="write it as db.table")
    return db, table
