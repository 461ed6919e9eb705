"""Lists a feed's encoded but unpublished windows, for encode and publish."""

from __future__ import annotations

from binlake.config.feed import FeedSection
from binlake.errors import IncompleteWindow
from binlake.feed.manifest import EncodeManifest
from binlake.feed.state import FeedState, find_greatest_hi_of_feed
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_sink

_HINT = "run encode first"


def list_waiting_windows(windows: WindowLog, feed: FeedSection, state: FeedState, hi: int) -> list[EncodeManifest]:
    """The windows that end at or below `hi`, in order. For a window that was encoded again, the last manifest."""
    sink = name_feed_sink(feed.name)
    reached = find_greatest_hi_of_feed(windows, "publish", feed.name, state) or 0
    events = windows.read_events(stage="encode", state="done", within=(reached, hi), sealed=True)
    events_of_feed = [event for event in events if event["sink"] == sink and event["at_ms"] > state.life_ms]
    sealed = {(event["lo"], event["hi"]): event["manifest"] for event in events_of_feed}
    return [EncodeManifest.from_json(text) for (_, end), text in sorted(sealed.items()) if reached < end <= hi]


def list_windows_to_publish(windows: WindowLog, feed: FeedSection, state: FeedState, hi: int) -> list[EncodeManifest]:
    """As `list_waiting_windows`, for publish. Raises IncompleteWindow if encode must run first."""
    hi, reached = feed.limit_ts(hi), find_greatest_hi_of_feed(windows, "publish", feed.name, state)
    manifests = list_waiting_windows(windows, feed, state, hi)
    if not manifests and max(reached or 0, feed.first_ts or 0) < hi:
        raise IncompleteWindow("a feed's window is not encoded", where={"feed": feed.name}, hint=_HINT)
    for manifest in manifests:
        if not matches_section(manifest, feed):
            raise IncompleteWindow(
                "the feed was changed after its window was encoded",
                where={"feed": feed.name, "window": manifest.window},
                hint=_HINT,
            )
    return manifests


def matches_section(manifest: EncodeManifest, feed: FeedSection) -> bool:
    """True if it was encoded with the feed's present section; assumed for a manifest without `config`."""
    return manifest.config in ("", feed.compute_data_hash())
