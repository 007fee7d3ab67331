"""Where a script lies, and how it was called."""
# $ python ./place.py --flag 'a b' '' -- -m x

import os
import sys
from pathlib import Path

import neighbour

print(__file__, sys.argv, sys.path[0], os.getcwd())
print(neighbour.__file__, (Path(__file__).parent / "data.txt").read_text())
print(__name__, __spec__, __builtins__, __doc__, __loader__.name)
