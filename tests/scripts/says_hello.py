"""Members of a launch that say hello to each other at the address of the first one."""

import json
import os
import socket

config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["worker"][0].split(":")
if config["task"]["index"] == 0:
    connection, _ = socket.create_server((host, int(port))).accept()
    heard = connection.recv(5)
    connection.sendall(b"hello")
else:
    heard = b""
    while not heard:
        try:
            connection = socket.create_connection((host, int(port)))
            connection.sendall(b"hello")
            heard = connection.recv(5)
        except OSError:
            pass
print("heard", heard.decode())
