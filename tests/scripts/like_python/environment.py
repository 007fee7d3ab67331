"""What a script inherits; the cluster adds variables of its own."""
# $ umask 077; DATA_DIR=/data BYTES=$'\xff=\n' python ./environment.py

import os

ours = {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "no_grpc_proxy"}
shown = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("TFCLUSTER_")}
for name, value in sorted(shown.items()):
    print(name, os.fsencode(value))
open("made.txt", "w")
print(oct(os.stat("made.txt").st_mode))
