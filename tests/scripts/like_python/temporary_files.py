"""Where temporary files are."""
# $ TMPDIR=$PWD/more python ./temporary_files.py

import tempfile

print(tempfile.gettempdir())
