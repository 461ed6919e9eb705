"""The definitions of the target's tables: as the schema history expects them and as the server shows them."""
