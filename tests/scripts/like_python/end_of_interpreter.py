"""What runs when the interpreter ends."""
# slow $ python ./end_of_interpreter.py

import atexit
import sys
import threading

atexit.register(print, "first")
atexit.register(print, "last")
threading.Timer(0.2, print, ["thread"]).start()
print("main", file=sys.stderr)
