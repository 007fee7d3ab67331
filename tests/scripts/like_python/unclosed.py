"""Leaves a file open that only the end of the interpreter closes, however the script ends."""
# $ python ./unclosed.py
# $ python ./unclosed.py stop
# error: unclosed.py failed: Stop
# slow $ python ./unclosed.py hook
# error: unclosed.py failed: ValueError: bad data

import csv
import os
import sys


class Stop(BaseException):
    """An exception that is no Exception."""


file = open("rows.csv", "w")
writer = csv.writer(file)
for number in range(200):
    writer.writerow([number, number**2])


def rows():
    return writer


if sys.argv[1:] == ["stop"]:
    raise Stop
if sys.argv[1:] == ["hook"]:  # for exceptions, which fails
    os.close(2)
    sys.stderr = sys.excepthook = None
    raise ValueError("bad data")
