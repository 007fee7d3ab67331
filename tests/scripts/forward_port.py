"""Sends data through a forwarded port: `forward_port.py CLUSTER HOST PROGRAM`."""

import socket
import subprocess
import sys

from tfcluster.client.resolve import find_cluster

cluster, host, serve = sys.argv[1:]
transport = find_cluster(cluster).connect(host).transport
line = transport.command_line([sys.executable, "-c", serve], is_terminal=False)
with socket.create_server(("127.0.0.1", 0)) as free:
    local = free.getsockname()[1]
with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
    assert server.stdout is not None
    port = int(server.stdout.readline())
    with transport.forward_port(local, port), socket.create_connection(("127.0.0.1", local)) as connection:
        connection.sendall(b"there and back" * 100_000)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(65536):
            received += data
print(received == b"THERE AND BACK" * 100_000)
