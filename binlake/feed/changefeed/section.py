"""A feed's section from what `create` and `update` are given; a value that is given twice must be the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import ValidationError

from binlake.config.feed import Feed
from binlake.config.reading import readable_error
from binlake.config.sinkuri import parse_sink_uri
from binlake.errors import ConfigError
from binlake.feed.changefeed.document import Document, read_document

Keys = Mapping[str, Any]


def make_section(given: Keys, config: str, base: Keys | None = None) -> Feed:
    """The feed of the keys `given`, the file `config` (empty: none), and of `base`, which both may change.

    Raises ConfigError.
    """
    document = read_document(Path(config)) if config else Document()
    for name, value in document.keys.items():
        if given.get(name, value) != value:
            raise _given_twice(name, config)
    keys = {**(base or {}), **document.keys, **given}
    uri = given.get("sink-uri")
    keys["sink-uri"] = _with_words(str(keys["sink-uri"]), document.words, config if uri else "")
    if base is None and "dispatchers" not in keys and (topic := parse_sink_uri(keys["sink-uri"]).topic):
        # Without dispatchers, TiCDC's default is the topic of the URI.
        keys["dispatchers"] = [{"matcher": ["*.*"], "topic": topic}]
    try:
        feed = Feed.model_validate(keys)
    except ValidationError as error:
        raise readable_error(error, Feed, config or "the command's options") from None
    feed.require_rules()
    return feed


def keys_of(feed: Feed) -> dict[str, Any]:
    """What its section says."""
    return feed.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _with_words(uri: str, words: Mapping[str, str], config: str) -> str:
    """`uri` with the parameters `words`; `config`: the file that must not contradict it, empty: it replaces them."""
    there = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    for name, value in words.items():
        if config and there.get(name, value) != value:
            raise _given_twice(name, config)
    more = {name: value for name, value in words.items() if there.get(name) != value}
    if not more:
        return uri
    parts = urlsplit(uri)
    return parts._replace(query=urlencode({**there, **more}, safe=":/,{}")).geturl()


def _given_twice(name: str, config: str) -> ConfigError:
    return ConfigError(
        f"`{name}` is given twice, and differs", where={"config": config}, hint="leave it out of the file"
    )
