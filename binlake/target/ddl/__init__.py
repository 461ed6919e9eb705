"""Runs one DDL on the target exactly once: intent, execution, proof."""
