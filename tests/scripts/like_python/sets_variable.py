"""Sets a variable that TensorFlow reads, which thus has to run in a fresh interpreter: it imports no fork server."""
# $ python ./sets_variable.py
# slow $ python -m sets_variable

import os
import sys

print("tfcluster.processes.runs.fork_server" in sys.modules)
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
