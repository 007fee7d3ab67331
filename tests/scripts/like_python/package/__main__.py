"""A package that is run."""
# $ python -m package

print(__name__, __package__)
