"""Events of a binary log: from the bytes that a server sends to the transactions they form (`transactions`)."""
