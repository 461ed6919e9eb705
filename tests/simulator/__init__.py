"""A deterministic simulator of the pump cluster (docs/simulator.md): the product's code, one seed, every fault."""
