"""Parse YAML text into plain Python values, with the line and column of each key and value."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import Reader

from tfcluster import settings
from tfcluster.spec.diagnostics import Date, Diagnostic, KeyPath, Position, describe, format_path, shorten, to_error
from tfcluster.spec.variables import TYPED_KEYS, SpecEnvironment, VariableError, is_variable, says_place

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
INIT_HINT = "tfcluster init writes a commented cluster.yaml"

_TOO_DEEP = f"nested more than {settings.SPEC_MAX_DEPTH} levels deep"
# libyaml reads up to 1,000 brackets ahead, so its own limit can be met before _check_shape sees the first of them.
_LIBYAML_TOO_DEEP = "exceeded maximum nesting depth"
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "value", _TAG + "merge"}
_NUMBER_TAGS = {_TAG + "int", _TAG + "float", _TAG + "bool"}
_COLLECTION_TAGS = {_TAG + "map", _TAG + "seq"}
_OCTAL = re.compile("[-+]?0[0-7_]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HOST_RANGE = re.compile(r"[A-Za-z0-9_.-]+\[[0-9,-]+\]")  # YAML reads its bracket as that of a list
_TOP = Position(1, 1)
_RESOLVER: Any = yaml.resolver.Resolver()


@dataclass
class YamlDocument:
    """A spec as the user wrote it: plain values with their positions, and the problems known so far."""

    file: str  # as the user named it
    environment: SpecEnvironment = field(default_factory=SpecEnvironment)
    typed_keys: Collection[str] = TYPED_KEYS  # those whose values are numbers, or true and false
    value: dict[str, Any] = field(default_factory=dict)  # the top-level mapping
    keys: dict[KeyPath, Position] = field(default_factory=dict)  # the position of the key, by path
    values: dict[KeyPath, Position] = field(default_factory=dict)  # the position of the value, by path
    texts: dict[KeyPath, str] = field(default_factory=dict)  # each scalar as it is spelled in the file, by path
    interpolated: set[KeyPath] = field(default_factory=set)  # the paths of scalars that have variables
    problems: list[Diagnostic] = field(default_factory=list)  # those of reading, to which the schema's are added
    broken: set[KeyPath] = field(default_factory=set)  # paths with a problem, of which no further one is reported

    def problem(self, path: KeyPath, message: str, hint: str = "", at: Position = _TOP) -> Diagnostic:
        """Return a diagnostic for the value at a path, which is empty for the whole file."""
        return Diagnostic(self.file, *at, f"{format_path(path)}: {message}" if path else message, hint)

    def describe(self, path: KeyPath, value: Any) -> str:
        """Describe the value at a path for error messages, without what variables hold: it may be secret."""
        if path in self.interpolated:
            return f"the value of {shorten(self.texts[path])!r}"
        return describe(value, self.texts.get(path))

    def report_key(self, path: KeyPath, message: str, hint: str = "") -> None:
        """Add a problem with the key at a path."""
        self.problems.append(self.problem(path, message, hint, self.keys[path]))

    def has_error(self, path: KeyPath) -> bool:
        """Return whether the path or one of its parents already has a problem."""
        return any(path[:length] in self.broken for length in range(len(path) + 1))

    def has_broken_secret(self, path: KeyPath) -> bool:
        """Return whether the value at a path is a secret that already has a problem."""
        return (*path, "secret") in self.broken


def read_source(
    text: str | bytes,
    file: str,
    environment: SpecEnvironment | None = None,
    typed_keys: Collection[str] = TYPED_KEYS,
) -> YamlDocument:
    """Read the YAML text of a spec, in UTF-8; `file` is the name for error messages.

    Problems that do not prevent reading the other values are in the document; a text that is not one YAML mapping
    raises an error.
    """
    source = YamlDocument(file, environment or SpecEnvironment(), typed_keys)
    text = _decode(text, source)
    try:
        _check_shape(text, source)
        node = yaml.compose(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise to_error([_syntax_problem(error, text, source)]) from None
    except (ValueError, OverflowError):  # an escape or a directive with a number that is out of range
        raise to_error([source.problem((), "not valid YAML: a number in it is out of range")]) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        raise to_error([source.problem((), "the file is empty", INIT_HINT)])
    if not isinstance(node, yaml.MappingNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else f"the text {shorten(node.value)!r}"
        message = f"expected keys such as jobs: at the top, found {kind}"
        raise to_error([source.problem((), message, INIT_HINT, _position(node))])
    source.value = _Reader(source).read(node, ())
    if source.has_error(()):
        raise to_error(source.problems)
    return source


def _decode(text: str | bytes, source: YamlDocument) -> str:
    if len(text) > settings.SPEC_MAX_BYTES:
        raise to_error([source.problem((), f"the file is larger than {settings.SPEC_MAX_BYTES >> 20} MiB")])
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            at = _position_after(error.object[: error.start].decode())
            message = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
            raise to_error([source.problem((), message, "save the file as UTF-8", at)]) from None
    text = text.removeprefix("\ufeff")
    if unprintable := Reader.NON_PRINTABLE.search(text):
        at = _position_after(text[: unprintable.start()])
        message = f"the character U+{ord(unprintable.group()):04X} is not allowed in YAML"
        raise to_error([source.problem((), message, "delete it", at)])
    return text


def _check_shape(text: str, source: YamlDocument) -> None:
    """Reject a second document, lone surrogates, and values that are nested too deeply for recursion."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > settings.SPEC_MAX_DEPTH:
            raise to_error([source.problem((), _TOO_DEEP, at=_position(event))])
        if isinstance(event, yaml.ScalarEvent) and _SURROGATE.search(event.value):
            message = "an escape in this text stands for half a character"
            raise to_error([source.problem((), message, at=_position(event))])
        if documents > 1:
            message = "a second document starts here; a spec is one document"
            hint = "keep each cluster in its own file"
            raise to_error([source.problem((), message, hint, _position(event))])


def _syntax_problem(error: yaml.YAMLError, text: str, source: YamlDocument) -> Diagnostic:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return source.problem((), f"not valid YAML: {error}")
    at = Position(mark.line + 1, mark.column + 1)
    lines = text.split("\n")
    if at.line <= len(lines) and lines[mark.line][mark.column : at.column] == "\t":
        return source.problem((), "a tab cannot indent YAML", "use spaces", at)
    if getattr(error, "problem", None) == _LIBYAML_TOO_DEEP:
        return source.problem((), _TOO_DEEP, at=at)
    reason = ", ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
    hosts = _HOST_RANGE.search(lines[mark.line]) if at.line <= len(lines) else None
    hint = f'write the range in quotes: "{hosts[0]}"' if hosts else ""
    return source.problem((), f"not valid YAML: {reason}", hint, at)


class _UnreadableError(Exception):
    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class _Reader:
    """Converts the nodes of one document to values, and records their positions and problems in a YamlDocument."""

    def __init__(self, source: YamlDocument) -> None:
        self._source = source
        self._remaining = settings.SPEC_MAX_VALUES
        self._ancestors: set[int] = set()

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count(node)
        self._source.values[path] = _position(node)
        value: Any = None
        if isinstance(node, yaml.ScalarNode):
            self._source.texts[path] = node.value
        try:
            if isinstance(node, yaml.ScalarNode):
                value = _scalar(self._interpolate(node, path), is_secret=not {"env", "secret"}.isdisjoint(path))
            elif node.tag not in _COLLECTION_TAGS:
                raise _unknown_tag(node)
            elif isinstance(node, yaml.MappingNode):
                value = self._mapping(node, path)
            else:
                value = [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        except _UnreadableError as error:
            self._reject(path, error.message, error.hint, node)
        self._ancestors.remove(id(node))
        return value

    def _interpolate(self, node: yaml.ScalarNode, path: KeyPath) -> yaml.ScalarNode:
        """Return the scalar with its variables replaced; where no text is expected, with the type of the result."""
        if "$" not in node.value or node.tag not in _TEXT_TAGS:
            return node
        try:
            text = self._source.environment.interpolate(node.value, path)
        except VariableError as error:
            raise _UnreadableError(error.message, error.hint) from None
        if text == node.value:
            return node
        self._source.interpolated.add(path)
        is_typed = path[-1] in self._source.typed_keys and not is_variable(path)
        return yaml.ScalarNode(_tag_of(text) if is_typed else node.tag, text, node.start_mark)

    def _count(self, node: yaml.Node) -> None:
        """Count a node before it is read, and enforce the limits.

        Aliases can make a short text infinite, huge (as in the "billion laughs" attack) or deeply nested.
        """
        self._remaining -= 1
        if id(node) in self._ancestors:
            message = "the alias refers to a value that contains the alias"
        elif self._remaining < 0:
            message = f"the file has more than {settings.SPEC_MAX_VALUES} values, aliases counted each time"
        elif len(self._ancestors) > settings.SPEC_MAX_DEPTH:
            message = _TOO_DEEP
        else:
            self._ancestors.add(id(node))
            return
        raise to_error([*self._source.problems, self._source.problem((), message, at=_position(node))])

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        value = {}
        for key, (key_node, value_node) in self._pairs(node, path).items():
            inner = (*path, key)
            if not path and key.startswith("x-"):  # it is only for anchors, as in a file of Docker Compose
                continue
            if self._source.environment.only_place and not says_place(inner):
                continue
            self._source.keys[inner] = _position(key_node)
            if not (isinstance(key_node, yaml.ScalarNode) and key_node.tag in _TEXT_TAGS):
                self._report_key(key_node, inner)
            value[key] = self.read(value_node, inner)
        return value

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return the key and value nodes of a mapping by key, after those that `<<` merges, which they override."""
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key_node.tag == _TAG + "merge":
                merged = {**self._merge(value_node, path), **merged}
            elif key in own:
                first = _position(own[key][0])
                message = f"this key is already at line {first.line}, column {first.column}"
                self._report((*path, key), message, "keep one of the two", key_node)
            else:
                own[key] = (key_node, value_node)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: KeyPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        self._count(node)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        if isinstance(node, yaml.MappingNode):
            pairs = self._pairs(node, path)
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(n, yaml.MappingNode) for n in node.value):
            for item in reversed(node.value):
                pairs.update(self._merge(item, path))
        else:
            self._report((*path, "<<"), "expected an alias of keys and values, or a list of such", "", node)
        self._ancestors.remove(id(node))
        return pairs

    def _report_key(self, node: yaml.Node, path: KeyPath) -> None:
        if isinstance(node, yaml.ScalarNode):
            hint = f'write it in quotes: "{shorten(node.value)}"'
            self._reject(path, "YAML does not read this key as text", hint, node)
        else:
            self._reject(path, "expected a name as the key, found a list or a mapping", "", node)

    def _reject(self, path: KeyPath, message: str, hint: str, node: yaml.Node) -> None:
        self._source.broken.add(path)
        self._report(path, message, hint, node)

    def _report(self, path: KeyPath, message: str, hint: str, node: yaml.Node) -> None:
        self._source.problems.append(self._source.problem(path, message, hint, _position(node)))


def _tag_of(text: str) -> str:
    """Return the tag of a number, or of true or false, that a variable holds; that of a text for everything else."""
    tag = str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))
    is_clear = ":" not in text and not _OCTAL.fullmatch(text)
    return tag if tag in _NUMBER_TAGS and is_clear else _TAG + "str"


def _scalar(node: yaml.ScalarNode, *, is_secret: bool) -> Any:
    if node.tag in _TEXT_TAGS:
        return node.value
    if node.tag == _TAG + "null":
        return None
    if node.tag == _TAG + "timestamp":
        return Date(node.value)
    if node.tag not in _NUMBER_TAGS:
        raise _unknown_tag(node)
    if len(node.value) > settings.SPEC_NUMBER_MAX_CHARS:
        raise _UnreadableError(f"the number is {len(node.value)} characters long")
    if ":" in node.value:
        raise _UnreadableError("YAML reads this as a number in base 60", "write it in quotes")
    kind = node.tag.removeprefix(_TAG)
    try:
        value = getattr(SafeConstructor(), f"construct_yaml_{kind}")(node)
    except (ValueError, LookupError):  # an explicit tag on text that does not have this type
        raise _UnreadableError(f"this cannot be read as {kind}") from None
    if kind == "int" and _OCTAL.fullmatch(node.value) and value != (decimal := int(node.value.replace("_", ""))):
        if is_secret:
            raise _UnreadableError("YAML reads this as an octal number", "write it in quotes, or without the first 0")
        raise _UnreadableError(
            f"YAML 1.1 reads this as {value} (octal), YAML 1.2 as {decimal}", f"write {value} or {decimal}"
        )
    return value


def _unknown_tag(node: yaml.Node) -> _UnreadableError:
    tag = shorten(node.tag.replace(_TAG, "!!"))
    return _UnreadableError(f"the tag {tag} has no meaning here", "delete it")


def _position(node: yaml.Node | yaml.Event) -> Position:
    mark: Any = node.start_mark
    return Position(mark.line + 1, mark.column + 1)


def _position_after(text: str) -> Position:
    return Position(text.count("\n") + 1, len(text) - text.rfind("\n"))
