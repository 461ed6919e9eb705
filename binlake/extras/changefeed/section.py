"""Builds a feed's section from the options of `create` and `update`. A value that is set twice must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import ValidationError

from binlake.base.tomlfile import build_readable_error
from binlake.config.feed import Feed
from binlake.config.protocols import AvroOptions
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import ConfigError
from binlake.extras.changefeed.document import Document, read_document

Keys = Mapping[str, Any]


def build_section(given: Keys, config: str, base: Keys | None = None) -> Feed:
    """The feed of the keys `given`, the file `config` (empty: none), and `base`, whose keys both override.

    Raises ConfigError.
    """
    document = read_document(Path(config)) if config else Document()
    for name, value in document.keys.items():
        if given.get(name, value) != value:
            raise _build_given_twice_error(name, config)
    keys = {**(base or {}), **document.keys, **given}
    uri = given.get("sink-uri")
    keys["sink-uri"] = _add_parameters(str(keys["sink-uri"]), document.words, config if uri else "")
    sink = parse_sink_uri(keys["sink-uri"])
    if base is None and "dispatchers" not in keys and sink.topic and isinstance(sink.options, AvroOptions):
        # Without dispatchers, TiCDC sends all tables to the topic of the URI (S2-43).
        keys["dispatchers"] = [{"matcher": ["*.*"], "topic": sink.topic}]
    keys |= {"dispatchers": _add_topics(keys["dispatchers"], sink.topic)} if "dispatchers" in keys else {}
    try:
        feed = Feed.model_validate(keys)
    except ValidationError as error:
        raise build_readable_error(error, Feed, config or "the command's options") from None
    feed.require_rules()
    return feed


def dump_section_keys(feed: Feed) -> dict[str, Any]:
    """The keys of the feed's section."""
    return feed.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _add_topics(dispatchers: Any, default: str) -> list[dict[str, Any]]:
    """Add the sink URI's topic to dispatchers without a topic, as TiCDC does."""
    for entry in dispatchers:
        if not entry.get("topic", default):
            raise ConfigError(
                "a dispatcher has no topic", where={"matcher": entry.get("matcher", "")},
                hint='give it a topic with {schema} and {table}, such as "tidb_{schema}_{table}"',
            )  # fmt: skip
    return [{**entry, "topic": entry.get("topic", default)} for entry in dispatchers]


def _add_parameters(uri: str, words: Mapping[str, str], config: str) -> str:
    """`uri` with the parameters `words` of the file `config`, which must not contradict `uri`; empty: they override."""
    present = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    for name, value in words.items():
        if config and present.get(name, value) != value:
            raise _build_given_twice_error(name, config)
    more = {name: value for name, value in words.items() if present.get(name) != value}
    if not more:
        return uri
    parts = urlsplit(uri)
    return parts._replace(query=urlencode({**present, **more}, safe=":/,{}")).geturl()


def _build_given_twice_error(name: str, config: str) -> ConfigError:
    return ConfigError(
        f"`{name}` is set twice, with different values", where={"config": config}, hint="remove it from the file"
    )
