"""The single writer of a target: its lease and fence, its checkpoint and ledger, its connections."""
