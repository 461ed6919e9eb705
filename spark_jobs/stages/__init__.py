"""The stages of a window, one module each; `binlake.pipeline` says which follow which."""
