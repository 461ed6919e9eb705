"""What goes wrong: each file holds faults of one kind, functions `strike(world, random)` that a schedule calls."""
