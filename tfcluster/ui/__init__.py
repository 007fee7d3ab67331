"""Format and print results on a terminal or to a pipe; the only package that imports rich."""
