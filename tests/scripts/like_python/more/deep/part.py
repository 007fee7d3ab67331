"""A module in a folder without `__init__.py`."""
# $ python -m more.deep.part

print(__spec__.origin)
