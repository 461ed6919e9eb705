"""From the bytes of a binlog to typed rows: the row codec, and the schema that it decodes rows with."""
