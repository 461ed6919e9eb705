"""A deterministic simulator of the pump cluster (docs/understand/simulator.md): one seed, every fault."""
