"""The stages of a window, one file each: `run(context, bounds) -> StageResult`. They do not import one another."""
