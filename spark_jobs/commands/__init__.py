"""The `binlake` commands that read or write the lake, and the entry point of a Spark job."""
