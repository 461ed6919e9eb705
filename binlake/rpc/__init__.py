"""Calls over HTTP/2 and HTTP/1.1 on one port."""
