# SPDX-License-Identifier: Apache-2.0
"""A host package read from its source files, as far as names and signatures go.

:meth:`HostSource.import_module` returns stand-ins for modules: their classes have the methods,
declared attributes and bases that the source gives them and functions carry their signature, so
:func:`diffspec.hosts.surface.check_surface` judges a host without running a line of it. Names that
come from other packages are there but empty.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffspec.hosts.surface import assigned_to_self

Definition = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS = (ast.If, ast.Try, ast.With)


class HostSource:
    """The package in folder ``root``, whose name is the folder's.

    ``beside`` are the folders of other packages whose names it may import: a class keeps the bases
    it has there.
    """

    def __init__(self, root: Path, *beside: Path) -> None:
        self.root = root
        self.name = root.name
        self._roots = {folder.name: folder for folder in (*beside, root)}
        self._modules: dict[str, _Module] = {}
        self._searching: set[tuple[str, str]] = set()

    def import_module(self, name: str) -> Any:
        """A stand-in for the module ``name`` of this package or one beside it.

        Raises:
            ModuleNotFoundError: there is no such file.
            SyntaxError: the file is not Python of this version.
        """
        return _ModuleView(self._module(name))

    def version(self) -> str | None:
        """The version the package calls itself, from ``_version.py``, or None."""
        try:
            nodes = _parse(self.root / "_version.py").body
        except (OSError, SyntaxError):
            return None
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
                if "__version__" in names and isinstance(node.value.value, str):
                    return node.value.value
        return None

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            path = self._file(name)
            if path is None:
                raise ModuleNotFoundError(f"No module named {name!r}")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            self._modules[name] = _Module(self, name, package, _parse(path))
        return self._modules[name]

    def _file(self, name: str) -> Path | None:
        first, *rest = name.split(".")
        if first not in self._roots:
            return None
        base = self._roots[first].joinpath(*rest)
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file() and (rest or path.name == "__init__.py"):
                return path
        return None

    def _find(self, module: str, name: str) -> Any:
        """What ``name`` is in ``module``: a stand-in, or an empty object for what is not ours."""
        step = (module, name)
        if step in self._searching:  # modules that import a name from each other
            return object()
        self._searching.add(step)
        try:
            return self._module(module).get(name)
        except ModuleNotFoundError:
            return object()
        finally:
            self._searching.discard(step)


class _Module:
    """One parsed module and what its names stand for."""

    def __init__(self, host: HostSource, name: str, package: str, tree: ast.Module) -> None:
        self.host, self.name, self.package = host, name, package
        self._bindings: dict[str, list[ast.AST]] = {}
        self._stars: list[str] = []
        for node in _statements(tree.body):
            self._bind(node)
        self._made: dict[int, Any] = {}

    def get(self, name: str, before: int | None = None) -> Any:
        """The last thing bound to ``name``, above line ``before`` if given.

        Raises:
            AttributeError: nothing is.
        """
        nodes = [
            node
            for node in self._bindings.get(name, [])
            if before is None or getattr(node, "lineno", 0) < before
        ]
        if nodes:
            return self._make(nodes[-1], name)
        for module in self._stars:
            try:
                return self.host._find(module, name)
            except AttributeError:
                continue
        if self.host._file(f"{self.name}.{name}") is not None:
            return self.host.import_module(f"{self.name}.{name}")
        raise AttributeError(f"{self.name} has no {name}")

    def _bind(self, node: ast.AST) -> None:
        names: list[str] = []
        if isinstance(node, Definition | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    self._stars.append(self._absolute(node))
                else:
                    names.append(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.Assign):
            names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        for name in names:
            self._bindings.setdefault(name, []).append(node)

    def _make(self, node: ast.AST, name: str) -> Any:
        if isinstance(node, ast.ImportFrom):
            wanted = next(a.name for a in node.names if (a.asname or a.name) == name)
            module = self._absolute(node)
            if module == self.name and self.host._file(f"{module}.{wanted}"):
                return self.host.import_module(f"{module}.{wanted}")
            return self.host._find(module, wanted)
        if id(node) not in self._made:
            if isinstance(node, ast.ClassDef):
                self._made[id(node)] = self._class(node)
            elif isinstance(node, Definition):
                self._made[id(node)] = stand_in(node)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                self._made[id(node)] = self._alias(node, node.value.id)
            else:
                self._made[id(node)] = object()
        return self._made[id(node)]

    def _alias(self, node: ast.Assign, name: str) -> Any:
        try:
            return self.get(name, node.lineno)
        except AttributeError:  # a name of Python's own
            return object()

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        base = parts[: len(parts) - (node.level - 1)]
        return ".".join([*base, *([node.module] if node.module else [])])

    def _class(self, node: ast.ClassDef) -> type:
        body: dict[str, Any] = {}
        declared: dict[str, Any] = {}
        for item in _statements(node.body):
            if isinstance(item, Definition):
                body[item.name] = stand_in(item)
                declared |= dict.fromkeys(assigned_to_self(item), Any)
            elif isinstance(item, ast.ClassDef):
                body[item.name] = object()
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                declared[item.target.id] = Any
            elif isinstance(item, ast.Assign):
                names = (n for t in item.targets for n in ast.walk(t) if isinstance(n, ast.Name))
                body |= {n.id: object() for n in names}
        bases = self._bases(node)
        body |= {"__annotations__": declared, "__module__": f"source of {self.name}"}
        body.pop("__slots__", None)
        body.pop("__new__", None)
        body.pop("__init_subclass__", None)
        body.pop("__class_getitem__", None)
        try:
            return type(node.name, bases, body)
        except TypeError:  # bases in an order Python refuses, once the unknown ones are left out
            for base in bases:
                for owner in reversed(base.__mro__):
                    declared = inspect.get_annotations(owner) | declared
                    body = {k: v for k, v in vars(owner).items() if k[:2] != "__"} | body
            return type(node.name, (), body | {"__annotations__": declared})

    def _bases(self, node: ast.ClassDef) -> tuple[type, ...]:
        found: list[type] = []
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            try:
                made: Any = None
                if isinstance(plain, ast.Name):
                    made = self.get(plain.id, node.lineno)
                elif isinstance(plain, ast.Attribute) and isinstance(plain.value, ast.Name):
                    made = getattr(self.get(plain.value.id, node.lineno), plain.attr, None)
            except (AttributeError, SyntaxError):
                continue
            if isinstance(made, type) and made is not object and made not in found:
                found.append(made)
        return tuple(found)


class _ModuleView:
    """Attribute access to a module's names."""

    def __init__(self, module: _Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._module.get(name)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body and of the blocks in it, which may or may not run."""
    for node in body:
        yield node
        if isinstance(node, _BLOCKS):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def stand_in(node: Definition) -> Any:
    """A function of the same signature that does nothing."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    made = []
    for index, argument in enumerate(positional):
        only = index < len(arguments.posonlyargs)
        place = inspect.Parameter.POSITIONAL_ONLY if only else _NAMED
        made.append(_parameter(argument.arg, place, index >= without))
    if arguments.vararg:
        made.append(_parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL, False))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        kind = inspect.Parameter.KEYWORD_ONLY
        made.append(_parameter(argument.arg, kind, default is not None))
    if arguments.kwarg:
        made.append(_parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD, False))

    def nothing(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{node.name} was read from source and cannot be called")

    nothing.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    return nothing


_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _parameter(name: str, kind: Any, has_default: bool) -> inspect.Parameter:
    default = None if has_default else inspect.Parameter.empty
    return inspect.Parameter(name, kind, default=default)


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
