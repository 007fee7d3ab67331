"""Has variables that libraries read when they are imported."""
# slow $ OMP_NUM_THREADS=1 TF_NUM_INTEROP_THREADS=3 python ./library_variables.py

import os

import tensorflow as tf

print(os.environ["OMP_NUM_THREADS"], tf.config.threading.get_inter_op_parallelism_threads())
