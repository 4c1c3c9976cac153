"""What xgrammar would ignore of a JSON schema: found by giving it schemas and instances that violate them."""

from __future__ import annotations

from typing import Any

from slotwise.interfaces.grammar import GrammarError

IGNORED = frozenset(
    (
        *("uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties"),
        *("not", "if", "then", "else"),
        *("minLength", "maxLength"),  # heeded, but it then forbids escapes in the string
    )
)
"""Keywords it takes no notice of."""
_TYPED = {
    "string": ("pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties", "required"),
}
"""Keywords it heeds only beside a `type`."""
FORMATS = frozenset(
    (
        *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        *("uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)
_NESTED_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NESTED_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_NESTED = ("items", "additionalProperties", "additionalItems", "propertyNames", "unevaluatedItems")


def refuse_ignored(schema: Any, path: str = "#") -> None:
    """Raises GrammarError naming the first keyword that would have no effect, and where it stands."""
    if not isinstance(schema, dict):
        return
    for fault in _faults(schema):
        raise GrammarError(f'xgrammar does not heed {fault} at {path}; leave it out, or use grammar.use = "llguidance"')
    for key in _NESTED:
        refuse_ignored(schema.get(key), f"{path}/{key}")
    for key in _NESTED_LISTS:
        for index, child in enumerate(schema.get(key) or ()):
            refuse_ignored(child, f"{path}/{key}/{index}")
    for key in _NESTED_MAPS:
        for name, child in (schema.get(key) or {}).items() if isinstance(schema.get(key), dict) else ():
            refuse_ignored(child, f"{path}/{key}/{name}")


def _faults(schema: dict[str, Any]) -> list[str]:
    faults = sorted(IGNORED & schema.keys())
    if "type" not in schema:
        faults += [f"{key} without a type" for keys in _TYPED.values() for key in keys if key in schema]
    if "multipleOf" in schema and schema.get("type") != "integer":
        faults.append("multipleOf of numbers")
    if "format" in schema and schema["format"] not in FORMATS:
        faults.append(f"the format {schema['format']!r}")
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        faults.append("allOf of several schemas")
    if isinstance(schema.get("oneOf"), list) and len(schema["oneOf"]) > 1:
        faults.append("oneOf where several may hold (say anyOf)")
    unnamed = [name for name in schema.get("required") or () if name not in (schema.get("properties") or {})]
    if unnamed and "type" in schema:
        faults.append(f"required properties that are not described ({', '.join(map(str, unnamed))})")
    return faults
