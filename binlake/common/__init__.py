"""Basics that every room uses: numbers, digests, processes, redaction; nothing here knows a row or a table."""
