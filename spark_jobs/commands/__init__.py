"""Commands of `binlake` that read or write the lake, and the entry of a Spark job."""
