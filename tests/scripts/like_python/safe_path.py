"""Where modules are searched for."""
# slow $ PYTHONSAFEPATH=1 python ./safe_path.py

import sys

print(sys.path[0])
