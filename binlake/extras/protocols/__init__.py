"""Protocols of feeds beside Avro and Canal-JSON; `binlake.feed.protocols` finds them by entry point."""
