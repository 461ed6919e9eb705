"""encode: turns row changes into messages of a feed."""
