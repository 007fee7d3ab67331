"""A folder that is run, and as an archive."""
# $ python ./main a
# $ python ./main.pyz a
# slow $ python ./main/ fail
# slow $ PYTHONSAFEPATH=1 python ./main.pyz fail

import sys

print(__file__, __name__, __package__, __spec__.name, sys.argv, sys.orig_argv[1:], sys.path[0])
import other

if "fail" in sys.argv:
    raise ValueError(other.__file__)
