"""The methods that an agent serves: one dataclass for each request, each reply and each event.

The modules of this package describe the methods by topic: `cluster`, `files`, `logs`, `processes` and `runs`; this
module is what they have in common. An agent reports tasks, ports and GPUs of its own host only. The
response to a request is any number of events, then one reply or error.

A message is encoded by `protocol.serialization`: as a JSON object with the names of its fields. Every field must be
present, and unknown fields are errors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, get_args

from tfcluster.errors import ClusterError
from tfcluster.protocol.serialization import DecodeError, decode, to_json
from tfcluster.records import record_class

E = TypeVar("E")
R = TypeVar("R")
EventT_co = TypeVar("EventT_co", covariant=True)
ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class Request(Generic[EventT_co, ReplyT_co]):
    """The base class of all requests.

    Its parameters are the types of the response's events (NoReturn if there are none) and of the reply.

    Attributes:
        method: The method that is requested.
        is_slow: Whether the first event or the reply may take long, because the agent first loads TensorFlow's library,
            waits for another change or asks every task.
        changes: Whether it changes the cluster or its runs, so that an older agent is replaced before it.
        event_type: The type of the events.
        reply_type: The type of the reply.
    """

    method: ClassVar[str]
    is_slow: ClassVar[bool]
    changes: ClassVar[bool]
    event_type: ClassVar[Any]
    reply_type: ClassVar[Any]

    def __init_subclass__(cls, *, method: str, is_slow: bool = False, changes: bool = False) -> None:
        cls.method = method
        cls.is_slow = is_slow
        cls.changes = changes
        (base,) = cls.__orig_bases__  # type: ignore[attr-defined] # it is Request with its parameters
        cls.event_type, cls.reply_type = get_args(base)
        _requests[method] = cls


_requests: dict[str, type[Request[Any, Any]]] = {}  # those of the modules that are imported, by method


@record_class(frozen=True)
class Reply(Generic[R]):
    """The reply, which a handler yields last, as opposed to the events before it."""

    value: R


@record_class(frozen=True)
class Done:
    """The reply that only confirms that the request was carried out."""


#: What a handler returns: the events of a response, then its reply.
Response = AsyncGenerator["E | Reply[R]", None]


def encode_request(request: Request[Any, Any]) -> dict[str, Any]:
    """Return the line of a request."""
    return {"method": request.method, "arguments": to_json(request)}


def decode_request(body: Any) -> Request[Any, Any]:
    """Decode the line of a request.

    Raises ClusterError if the line is not a request, or its method or an argument is unknown, missing or wrong. The
    error names the argument, without its value, which may be secret.
    """
    method = body.get("method") if isinstance(body, dict) else None
    if not isinstance(method, str) or method not in _requests:
        raise ClusterError(f"not a request: {method!r:.200}")
    try:
        return decode(_requests[method], body.get("arguments"))
    except DecodeError as error:
        raise ClusterError(f"request {method!r}: {error.without_value}") from None


def decode_response(kind: type[Request[Any, Any]], value: Any, *, is_reply: bool) -> Any:
    """Decode the reply or an event of a response; raises ClusterError if it does not have the request's type."""
    try:
        if is_reply:
            return decode(kind.reply_type, value)
        if kind.event_type is not NoReturn:
            return decode(kind.event_type, value)
        problem = "unexpected"
    except DecodeError as error:
        problem = error.without_value
    what = "reply" if is_reply else "event"
    raise ClusterError(f"the agent sent a wrong {what} to the request {kind.method!r}: {problem}")
