"""The full load: a source's tables as they were at one position of its log, read in chunks as rows for the pumps."""
