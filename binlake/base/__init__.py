"""What every room rests on: numbers, digests, processes, redaction; nothing here knows a row or a table."""
