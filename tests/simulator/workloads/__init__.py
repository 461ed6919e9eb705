"""What clients do: each file is one kind of client, a function `run(world, number)` on a process of its own."""
