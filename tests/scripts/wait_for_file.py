"""Prints its pid and that of its driver, and ends when there is the file that the argument names."""

import os
import sys
import time

print(os.getpid(), os.getppid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("the end")
