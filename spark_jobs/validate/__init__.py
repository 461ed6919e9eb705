"""The stage validate: compares rows at the target with the lake and the source."""
