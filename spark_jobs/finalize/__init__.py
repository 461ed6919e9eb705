"""The stage finalize: the window on the target."""
