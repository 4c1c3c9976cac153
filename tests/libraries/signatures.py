"""Signatures read from source code, without importing it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path


def signature_in(source: Path, name: str, owner: str | None = None) -> dict[str, object]:
    """Parameter -> default of a function (or of a method of class `owner`), `self` excluded; the last definition counts, as overloads come
    first. A default that is no literal is its source text; no default is `inspect.Parameter.empty`."""
    function = _function_in(source, name, owner)
    positional = [*function.args.posonlyargs, *function.args.args]
    defaults = [inspect.Parameter.empty] * (len(positional) - len(function.args.defaults)) + [
        _value(node) for node in function.args.defaults
    ]
    found = {argument.arg: default for argument, default in zip(positional, defaults, strict=True) if argument.arg != "self"}
    for argument, node in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        found[argument.arg] = inspect.Parameter.empty if node is None else _value(node)
    return found


def docstring_in(source: Path, name: str, owner: str | None = None) -> str:
    """The same function's documentation."""
    return ast.get_docstring(_function_in(source, name, owner)) or ""


def _function_in(source: Path, name: str, owner: str | None) -> ast.FunctionDef:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    scope = tree.body if owner is None else next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner).body
    return [node for node in scope if isinstance(node, ast.FunctionDef) and node.name == name][-1]


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def signature_of(function: object) -> dict[str, object]:
    """The same of a function at hand."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.name != "self" and each.kind is not inspect.Parameter.VAR_POSITIONAL}
