"""Leaves an object in a cycle, whose destructor writes a file."""
# slow $ python ./destructors.py

import builtins


class Resource:
    def __init__(self):
        self.itself = self

    def __del__(self):
        with open("released.txt", "a") as file:
            file.write("released")


open = builtins.open
resource = Resource()
