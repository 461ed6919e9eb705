"""The target's tables as the schema history expects them and as the server shows them."""
