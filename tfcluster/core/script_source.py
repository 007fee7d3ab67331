"""What the source of a script tells before it is run: whether it is Python, and whether it changes a variable."""

from __future__ import annotations

import ast
import io
import warnings


def find_other_program(name: str, source: bytes) -> str | None:
    """Return what a file is if a shell or the kernel can execute it, and Python cannot; None for any other file.

    A first line `#!/bin/sh` alone does not show it: scripts of an interpreter with a long path begin with it too.
    """
    if source.startswith(b"\x7fELF"):
        return "a compiled program (ELF)"
    first = source.split(b"\n", 1)[0]
    interpreter = first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else ""
    if not interpreter and name.endswith(".sh"):
        interpreter = "a shell"
    is_archive = b"PK\5\6" in source[-(1 << 16) :]
    if not interpreter or "python" in interpreter or is_archive or _parse(source) is not None:
        return None
    return f"a script of {interpreter}"


def lacks_main(source: bytes) -> bool:
    """Return whether a file is a zip archive that Python cannot execute, as it has no `__main__`."""
    import zipfile  # rarely needed, and slow to import

    try:
        with zipfile.ZipFile(io.BytesIO(source)) as archive:
            return not {"__main__.py", "__main__.pyc"}.intersection(archive.namelist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError):  # none, or one that Python does not read
        return False


def find_change(source: bytes, variable: str) -> int | None:
    """Return the first line of a script that changes an environment variable; None if there is none.

    What depends on an `if` that names the variable is not a change: it is for processes outside of a cluster.
    """
    lines, nodes = list[int](), list[ast.AST](filter(None, [_parse(source)]))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and _names(node.test, variable):
            continue
        if _changes(node, variable):
            lines.append(getattr(node, "lineno", 0))
        nodes += ast.iter_child_nodes(node)
    return min(lines, default=None)


def _parse(source: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the interpreter that runs the script shows them
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _changes(node: ast.AST, variable: str) -> bool:
    """Return whether an operation changes a variable of `os.environ`, not of the environment of a child process."""
    match node:
        case ast.Subscript(value=target, slice=ast.Constant(value=name), ctx=ast.Store() | ast.Del()):
            is_change = name == variable
        case ast.AugAssign(target=target, value=ast.Dict() as value):
            is_change = _names(value, variable)
        case ast.Call(func=ast.Attribute(value=target, attr="update" | "pop" | "putenv" | "unsetenv")):
            is_change = _names(node, variable)
        case _:
            return False
    return is_change and getattr(target, "attr", getattr(target, "id", "")) in ("environ", "os")


def _names(node: ast.AST, variable: str) -> bool:
    """Return whether an expression has the name of a variable, as text or as a keyword."""
    return any(variable in (getattr(each, "value", None), getattr(each, "arg", None)) for each in ast.walk(node))
