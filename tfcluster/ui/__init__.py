"""How results look on a terminal and in a pipe; the only place that imports rich."""
