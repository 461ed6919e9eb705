"""What a row, a table or a transaction was: questions answered from the lake and its mirrors."""
