"""The stage land: windows pulled from the pumps."""
