"""Can a method be called in every way in which its contract's method can be called? Decided by signatures alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

Parameter = inspect.Parameter


def method_mismatches(found: type, base: type) -> list[str]:
    """One line for each method of `base` that `found` overrides incompatibly: its name, what is wanted, what was found."""
    faults = []
    for name in _contract_methods(base):
        wanted, given = inspect.getattr_static(base, name), inspect.getattr_static(found, name)
        fault = None if given is wanted else _mismatch(name, wanted, given)
        if fault is not None:
            faults.append(fault)
    return faults


def _contract_methods(base: type) -> Iterator[str]:
    for name, member in vars(base).items():
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and (inspect.isfunction(member) or isinstance(member, property)):
            yield name


def _mismatch(name: str, wanted: Any, given: Any) -> str | None:
    if isinstance(wanted, property):
        return f"{name} must be a property, found a method" if inspect.isroutine(given) else None
    function = given.__func__ if isinstance(given, staticmethod | classmethod) else given
    if isinstance(given, staticmethod) or not callable(function):
        return f"{name} must be a method, found {given!r}"
    if inspect.iscoroutinefunction(function):
        return f"{name} must not be a coroutine: wanted def {name}{inspect.signature(wanted)}, found async def"
    try:
        found = inspect.signature(function)
    except ValueError:
        return None  # a compiled method without signature can only be tried
    contract = inspect.signature(wanted)
    if accepts_calls_of(found, contract):
        return None
    return f"{name} cannot be called as the contract calls it: wanted {name}{_plain(contract)}, found {name}{_plain(found)}"


def _plain(signature: inspect.Signature) -> str:
    parameters = [parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def accepts_calls_of(found: inspect.Signature, wanted: inspect.Signature) -> bool:
    """Whether each call that `wanted` allows binds to `found` with the same names: by position, by keyword, with and without
    what `wanted` leaves optional."""
    return all(_binds_alike(found, args, kwargs) for args, kwargs in _calls(wanted))


def _calls(wanted: inspect.Signature) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Calls that stand for all others; each argument's value is its own name."""
    parameters = [item for item in wanted.parameters.values() if item.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    for chosen in (parameters, [item for item in parameters if item.default is Parameter.empty]):
        for first_keyword in {1, len(chosen)}:  # the object itself always goes by position
            positional = [item.name for index, item in enumerate(chosen) if _goes_by_position(item, index < first_keyword)]
            yield positional, {item.name: item.name for item in chosen if item.name not in positional}


def _goes_by_position(parameter: inspect.Parameter, is_leading: bool) -> bool:
    return parameter.kind is Parameter.POSITIONAL_ONLY or (is_leading and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD)


def _binds_alike(found: inspect.Signature, args: list[str], kwargs: dict[str, str]) -> bool:
    try:
        bound = found.bind(*args, **kwargs)
    except TypeError:
        return False
    own = list(found.parameters)[:1]  # the first parameter's name (self) is free
    return all(
        value == name or name in own
        for name, value in bound.arguments.items()
        if found.parameters[name].kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    )
