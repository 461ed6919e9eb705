"""`binlake doctor`: a list of checks, most of which are what other commands check already."""
