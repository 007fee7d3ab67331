"""A module of a package, run by its name, and names of others."""
# $ python -m package.part -- -m x
# $ python -m package.none
# slow $ python -m package.part fail
# slow $ python -m json.tool --help

import os
import sys

from . import name
from .inner import other

print(__file__, __cached__, __name__, __package__, __spec__.name, __loader__.name, name, other)
print(sys.argv, sys.orig_argv[1:], sys.path[0], os.getcwd())
if "fail" in sys.argv:
    raise ValueError("no data")
sys.exit(len(sys.argv))
