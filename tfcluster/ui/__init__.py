"""Format and print results on a terminal or to a pipe; only this package and the `render` of programs import rich."""
