"""The part of `transport` that runs on another host: it finds or receives the code, and serves a session."""
