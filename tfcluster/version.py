"""The version of tfcluster, and that of the protocol between commands and agents."""

__version__ = "0.2.0"

#: The protocol version. It grows whenever a request, reply or event changes, because both sides decode strictly. A
#: command replaces an agent that has a lower version, and refuses to work with one that has a higher version.
PROTOCOL = 43
