"""Debezium's JSON as TiCDC writes it: key and value with their schema, source block, rows before and after."""
