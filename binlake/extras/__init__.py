"""What a row does not pass on its way: other tools' files and commands, more protocols, restoring, validation."""
