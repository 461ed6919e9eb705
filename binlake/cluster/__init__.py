"""The source cluster: its placement driver, its pumps, the source itself, and commands for operators."""
