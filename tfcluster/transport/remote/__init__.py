"""What runs on another host: it finds or receives the code, and serves a session. The other end is in `transport`."""
