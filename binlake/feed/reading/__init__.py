"""Reads what feeds wrote, for people and checks: topics and files, decoded message by message."""
