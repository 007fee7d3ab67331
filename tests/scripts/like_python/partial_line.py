"""Output without a newline at its end."""
# $ python ./partial_line.py

import sys

print("10 %\r", end="")
sys.stderr.write("no end")
