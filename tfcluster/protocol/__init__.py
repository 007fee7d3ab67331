"""The RPC protocol between the command line and an agent: messages and their encoding, without I/O."""
