"""`binlake feeder check`: whether each source can be read and followed; nothing is written to a source."""
