"""The pages' templates and style sheet; a package, so that they are installed with the code."""
