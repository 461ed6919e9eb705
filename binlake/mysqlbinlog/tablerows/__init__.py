"""The rows of a table as a SELECT gives them: cut into ranges, read as the server's packets, written as TiDB's rows."""
