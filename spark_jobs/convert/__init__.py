"""The stage convert: SQL of the target."""
