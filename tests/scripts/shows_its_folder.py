"""Prints what a script has beside it after it was sent to a host, and changes that."""

import json
import os
import sys
from pathlib import Path

import helper  # type: ignore[import-not-found]
import package.part  # type: ignore[import-not-found]

files: dict[str, object] = {}
for path in sorted(Path(".").rglob("*"), key=os.fsencode):
    if path.is_symlink():
        files[ascii(str(path))] = "-> " + os.readlink(path)
    elif path.is_file() and path.suffix != ".pyc":
        files[ascii(str(path))] = [len(path.read_bytes()), os.access(path, os.X_OK)]
print(
    json.dumps(
        {
            "argv": sys.argv,
            "file": os.path.relpath(__file__),
            "path": os.path.relpath(sys.path[0]),
            "cwd": os.path.basename(os.getcwd()),
            "files": files,
            "helper": helper.VALUE + package.part.VALUE,
        }
    )
)
Path("data file.txt").write_text("changed")
Path("made.txt").write_text("made")
