"""`binlake changefeed`: feeds as files, made, changed and ended by people who know `cdc cli changefeed`."""
