"""A server that sends back in capital letters what it receives."""

import socket

with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    size = 0
    while size == 0:  # the first one only shows whether it listens
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data.upper())
                size += len(data)
