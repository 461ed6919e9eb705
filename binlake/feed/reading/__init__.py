"""Reads the topics and files of feeds, for people and checks, and decodes them message by message."""
