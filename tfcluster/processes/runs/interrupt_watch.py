"""Notice when Python handles an interrupt: it runs no handler of a signal as long as its main thread is inside C++.

The kernel calls the interpreter's own handler at once, which only notes the signal; that tells nothing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
from collections.abc import Callable
from typing import Any

_Handler = Callable[[int, Any], Any] | int | None


def watch_interrupts(on_handled: Callable[[], None]) -> None:
    """Have a function called each time that Python is about to call a handler of SIGINT, whichever the program sets.

    The program sees its own handlers alone: the functions of the module `signal` look these two up.
    """
    set_handler, get_handler = _signal.signal, _signal.getsignal

    def set_watched(number: int, handler: _Handler) -> Any:
        is_watched = number == signal.SIGINT and callable(handler)
        return _own_handler(set_handler(number, _WatchedHandler(handler, on_handled) if is_watched else handler))

    def get_watched(number: int) -> Any:
        return _own_handler(get_handler(number))

    _signal.signal, _signal.getsignal = set_watched, get_watched
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


class _WatchedHandler:
    """A handler of a signal. Its caller reads `__call__` first, so that no call of ours is below the handler's own."""

    def __init__(self, handler: Any, on_handled: Callable[[], None]) -> None:
        self.handler = handler
        self._on_handled = on_handled

    @property
    def __call__(self) -> Any:
        self._on_handled()
        return self.handler


def _own_handler(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _WatchedHandler) else handler
