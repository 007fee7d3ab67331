"""Says whether HDF5 locks the file that it writes, which a variable decides when h5py is imported."""
# $ HDF5_USE_FILE_LOCKING=FALSE python ./locks.py

import fcntl
import sys

import h5py

print("tfcluster.processes.runs.fork_server" in sys.modules)  # no fresh interpreter imports it
with h5py.File("data.h5", "w"), open("data.h5") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("not locked")
    except BlockingIOError:
        print("locked")
