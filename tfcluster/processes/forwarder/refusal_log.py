"""The log of a forwarder: which connections it has refused, and why.

Unauthorized peers control the number of refused connections. Equal lines are therefore written once per period, and
the number of different lines is limited; the rest are only counted.
"""

from __future__ import annotations

import ssl
import threading
import time
from pathlib import Path

from tfcluster import settings
from tfcluster.core.text import pluralize
from tfcluster.processes.logs.rotating_log import LineLog

#: What OpenSSL reports of a certificate that another authority than the cluster's has signed, or none at all.
_FOREIGN = frozenset({7, 18, 19, 20, 21, 24})  # X509_V_ERR_*, see x509_vfy.h
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "HTTP_REQUEST": "it does not speak TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
}


def explain(error: Exception) -> str:
    """Return why a connection was refused."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _FOREIGN:
            return f"its certificate is not from this cluster ({error.verify_message})"
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, f"TLS: {error.reason.lower().replace('_', ' ')}")
    return str(error)


class ForwarderLog:
    """Writes the lines; several threads may use it."""

    def __init__(self, path: Path) -> None:
        self._lines = LineLog(path)
        self._lock = threading.Lock()
        self._period_end = 0.0
        self._written: set[str] = set()  # in this period
        self._omitted = 0  # in this period

    def write(self, message: str) -> None:
        """Write a line about this host: about a file that cannot be read, for example."""
        with self._lock:
            self._append(message)

    def write_connection(self, message: str) -> None:
        """Write a line about a connection, unless the same or too much was written just now."""
        with self._lock:
            self._expire()
            if message in self._written or len(self._written) >= settings.FORWARD_LOG_LINES_MAX:
                self._omitted += 1
                return
            if not self._written:
                self._period_end = time.monotonic() + settings.FORWARD_LOG_SECONDS
            self._written.add(message)
            self._append(message)

    def expire(self) -> float | None:
        """Write how many lines were left out, if it is time; return the seconds until then, if any were."""
        with self._lock:
            self._expire()
            return max(0.0, self._period_end - time.monotonic()) if self._omitted else None

    def _expire(self) -> None:
        if not self._written or time.monotonic() < self._period_end:
            return
        if self._omitted:
            lines = pluralize(self._omitted, "more line")
            self._append(f"{lines} like these in {settings.FORWARD_LOG_SECONDS:g} s")
        self._written.clear()
        self._omitted = 0

    def _append(self, text: str) -> None:
        self._lines.append(f"{text}\n".encode(errors="backslashreplace"), time.time())
