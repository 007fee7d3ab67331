"""Has variables that Python reads when it starts."""
# slow $ PYTHONPATH=$PWD/more:$PYTHONPATH PYTHONOPTIMIZE=1 PYTHONIOENCODING=latin-1 LC_ALL=C python ./starts_with.py

import sys

import addition

print(sys.flags.optimize, addition.__name__, sys.stdout.encoding)
