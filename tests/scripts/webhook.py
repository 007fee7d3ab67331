"""A webhook that writes each notice as a line to a file: `webhook.py ADDRESS FILE`."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        with open(sys.argv[2], "ab") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])) + b"\n")
        self.send_response(204)
        self.end_headers()


server = HTTPServer((sys.argv[1], 8080), Handler)
print("ready", flush=True)
server.serve_forever()
