"""The stage land: pulls windows from the pumps."""
