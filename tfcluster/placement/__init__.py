"""Where operations were placed: read from what servers print, and drawn; no I/O."""
