"""The stage convert: SQL for the target."""
