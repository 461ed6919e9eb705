"""What a DDL of the source means at the target: whether it runs, as which text, and what tables of one target do."""
