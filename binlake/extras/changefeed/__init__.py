"""`binlake changefeed`: creates, changes and removes feeds as files, with the commands of `cdc cli changefeed`."""
