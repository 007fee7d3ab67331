"""Frozen dataclasses whose classes are made quickly: a command makes nearly a hundred of them whenever it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["record_class"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record_class
else:
    import dataclasses
    from functools import cache

    def record_class(*, frozen: bool) -> Any:
        """Make a class a dataclass, as `dataclasses.dataclass(frozen=True)` does, but compile only `__init__` for it.

        dataclasses compiles six methods for each class, which takes four times as long: a fourth of the time in which a
        command starts. Here the others are the same functions for all classes. Nothing but the type checker refuses to
        set a field.
        """

        def make(cls: type) -> type:
            cls.__eq__, cls.__hash__, cls.__repr__ = _equals, _hash, _represent
            return dataclasses.dataclass(eq=False, repr=False)(cls)

        assert frozen
        return make

    @cache
    def _compared(cls: type) -> list[str]:
        return [field.name for field in dataclasses.fields(cls) if field.compare]

    def _values(record: Any) -> tuple[Any, ...]:
        return tuple([getattr(record, name) for name in _compared(type(record))])

    def _equals(self: Any, other: object) -> Any:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def _hash(self: Any) -> int:
        return hash(_values(self))

    def _represent(self: Any) -> str:
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"
