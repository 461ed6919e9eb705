"""Answers questions about past rows, tables and transactions from the lake and its mirrors."""
