"""The Spark shell: the data source over pumps and the stages of a window over Delta; the rules are in `binlake`."""
