"""Sets a variable that HDF5 reads by an update of all of them."""
# $ python ./updates_variables.py

import os

os.environ.update(HDF5_USE_FILE_LOCKING="FALSE")
