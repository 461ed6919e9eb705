"""What the stage land pulls from the pumps, and asks of the source, before it seals a window."""
