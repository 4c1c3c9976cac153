"""What xgrammar would ignore of a JSON schema: found by giving it schemas and instances that violate them.

What this file does not know: xgrammar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slotwise.interfaces.grammar import GrammarError
from slotwise_plugins.grammar.xgrammar_expressions import check_pattern

IGNORED = frozenset(
    (
        *("uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        *("not", "if", "then", "else", "$dynamicRef", "$recursiveRef"),
        *("minLength", "maxLength"),  # heeded, but it then forbids escapes in the string
    )
)
"""Keywords it takes no notice of."""
_TYPED = {
    "string": ("pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("minItems", "maxItems", "items", "prefixItems"),
    "object": ("minProperties", "maxProperties", "required", "properties", "patternProperties", "additionalProperties", "propertyNames"),
}
"""Keywords by the type that they are about."""
_NEEDS_TYPE = frozenset(_TYPED["string"] + _TYPED["number"] + ("minItems", "maxItems", "minProperties", "maxProperties", "required"))
"""Of them, those that it heeds only beside a `type`."""
_ALONE = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
"""Beside one of these it heeds nothing else."""
_RULES = frozenset(("type", *_ALONE, *(key for keys in _TYPED.values() for key in keys)))
FORMATS = frozenset(
    (
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)
_NESTED_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NESTED_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NESTED = ("items", "additionalProperties", "propertyNames", "unevaluatedItems")
_MAX_DIVISOR = 1024
_INEXACT = 2**63
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def refuse_ignored(schema: Any, path: str = "#") -> None:
    """Raises GrammarError naming the first keyword that would have no effect, and where it stands."""
    if not isinstance(schema, dict):
        return
    for fault in (*_ignored(schema), *_odd_values(schema), *_lost_beside(schema)):
        raise GrammarError(f'xgrammar does not heed {fault} at {path}; leave it out, or use grammar.use = "llguidance"')
    if isinstance(schema.get("pattern"), str):
        check_pattern(schema["pattern"])
    for key, child in _children(schema):
        refuse_ignored(child, f"{path}/{key}")


def _children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _NESTED:
        yield key, schema.get(key)
    for key in _NESTED_LISTS:
        children = schema.get(key)
        yield from ((f"{key}/{index}", child) for index, child in enumerate(children if isinstance(children, list) else ()))
    for key in _NESTED_MAPS:
        named = schema.get(key)
        yield from ((f"{key}/{name}", child) for name, child in (named.items() if isinstance(named, dict) else ()))


def _ignored(schema: dict[str, Any]) -> Iterator[str]:
    yield from sorted(IGNORED & schema.keys())
    if "type" not in schema:
        yield from (f"{key} without a type" for key in sorted(_NEEDS_TYPE & schema.keys()))
    if schema.get("type") == [] or schema.get("anyOf") == []:
        yield "an empty list of types or schemas"
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        yield f"the reference {reference!r}, which is none to a place in the schema (#/...)"
    for pattern in schema["patternProperties"] if isinstance(schema.get("patternProperties"), dict) else ():
        check_pattern(pattern)


def _odd_values(schema: dict[str, Any]) -> Iterator[str]:
    divisor = schema.get("multipleOf")
    if divisor is not None and (schema.get("type") != "integer" or not isinstance(divisor, int) or not 1 <= divisor <= _MAX_DIVISOR):
        yield f"multipleOf but of integers, by 1 to {_MAX_DIVISOR}"
    if "format" in schema and schema["format"] not in list(FORMATS):
        yield f"the format {schema['format']!r}"
    for key in ("allOf", "oneOf"):
        if isinstance(schema.get(key), list) and len(schema[key]) > 1:
            yield f"{key} of several schemas" + (" (say anyOf)" if key == "oneOf" else "")
    for number in _numbers(_values(schema)):
        yield f"the number {number} exactly"
    required = schema.get("required") if isinstance(schema.get("required"), list) else []
    properties = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    unnamed = [str(name) for name in required or () if not isinstance(name, str) or name not in (properties or {})]
    if unnamed:
        yield f"required properties that are not described ({', '.join(unnamed)})"


def _lost_beside(schema: dict[str, Any]) -> Iterator[str]:
    """Keywords that others take the effect from."""
    alone = next((key for key in _ALONE if key in schema), None)
    others = sorted(_RULES & schema.keys() - {alone})
    if alone in ("enum", "const") and others == ["type"]:
        others = [] if all(_is_of(value, schema["type"]) for value in _values(schema)) else others
    if alone is not None and others:
        yield f"{others[0]} beside {alone}"
    if "multipleOf" in schema and any(key in schema for key in _TYPED["number"][:-1]):
        yield "multipleOf beside bounds"
    if "format" in schema and "pattern" in schema:
        yield "pattern beside format"
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and (len(patterns) > 1 or schema.get("properties")):
        yield "patternProperties beside others, which may hold for the same names,"
    if "propertyNames" in schema and (schema.get("properties") or patterns):
        yield "propertyNames beside described properties"


def _values(schema: dict[str, Any]) -> list[Any]:
    """Constants of the schema."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if isinstance(values, list) else []


def _numbers(value: Any) -> Iterator[int]:
    """Integers of more than 64 bits in a constant."""
    if isinstance(value, int) and abs(value) >= _INEXACT:
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _numbers(child)


def _is_of(value: Any, types: Any) -> bool:
    names = types if isinstance(types, list) else [types]
    return any(
        isinstance(name, str) and isinstance(value, _TYPES.get(name, ())) and (name == "boolean") == isinstance(value, bool)
        for name in names
    )
