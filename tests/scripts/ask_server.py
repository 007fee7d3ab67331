"""Asks a server for its devices, as a client without TensorFlow can: `ask_server.py ADDRESS SECONDS`."""

import sys

import grpc

channel = grpc.insecure_channel(sys.argv[1])
ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus", bytes, bytes)
try:
    answer = ask(b"", timeout=float(sys.argv[2]), wait_for_ready=True)
    print("device:CPU:0" if b"device:CPU:0" in answer else answer)
except grpc.RpcError as error:
    print(error.code().name)
