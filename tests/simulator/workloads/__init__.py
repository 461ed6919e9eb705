"""The clients: each file is one kind of client, a function `run(world, number)` in a separate process."""
