"""Protobuf stubs generated from `proto/` (regenerate with `make proto`, never edit them), and helpers for them."""
