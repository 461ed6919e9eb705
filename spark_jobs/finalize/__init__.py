"""The stage finalize: applies the window to the target."""
