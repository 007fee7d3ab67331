"""Serves at the address of its task, connects to all of `cluster`, and prints its TF_CONFIG."""

import json
import os
import socket
import time


def resolve(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


def connect(address: str) -> None:
    while True:
        try:
            socket.create_connection(resolve(address)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return


config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
addresses = [address for job in cluster.values() for address in job]
if task["type"] in cluster:
    server = socket.create_server(resolve(cluster[task["type"]][task["index"]]))
    for address in addresses:
        connect(address)
    for _ in addresses:
        server.accept()
print(json.dumps(config))
