"""The source cluster: its placement driver, its pumps, the source itself, and an operator's commands over them."""
