"""The Spark shell: a data source that reads pumps, and the stages of a window on Delta. The rules are in `binlake`."""
