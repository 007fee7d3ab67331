"""Sets a variable that HDF5 reads, by an update of several, and prints whether HDF5 locks its files then."""
# $ python ./updates_variables.py
# slow $ python -m updates_variables

import os

os.environ.update(HDF5_USE_FILE_LOCKING="FALSE")

import locks
