"""The faults: each file holds faults of one kind, as functions `strike(world, random)` that a schedule calls."""
