"""Events of a binary log: bytes, as a server sends them, to the transactions that they make up (`transactions`)."""
