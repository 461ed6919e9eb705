"""The rows of a table as a SELECT returns them: split into ranges, read as the server's packets, written as TiDB's."""
