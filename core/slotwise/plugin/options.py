"""A component's options: its section of the configuration validated by its own model, and described for people.

What this file does not know: files, environment variables, precedence; it is given plain values and a dotted key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from slotwise.errors import ConfigError
from slotwise.plugin.states import LoadedComponent
from slotwise.plugin.suggestions import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionDescription:
    """One option, for listings."""

    name: str
    type: str
    """In words, with limits: `"integer, at least 1"`."""
    default: Any
    """JSON-able; None also where the option is required."""
    required: bool
    description: str


def validate_options(loaded: LoadedComponent, options: Mapping[str, Any], *, prefix: str | None = None) -> BaseModel | None:
    """`options` as the component's options model, defaults filled in; None for a component that takes no options.

    `prefix` is the dotted key of the options in the configuration (default `<slot>.options`). Raises ConfigError naming the dotted
    key, what was given and what is accepted; for an unknown key also the nearest known one.
    """
    component = loaded.component
    prefix = f"{component.slot}.options" if prefix is None else prefix
    if not isinstance(options, Mapping):
        raise ConfigError(f"{prefix} must be a table of options, not {options!r}.", key=prefix)
    model = component.options
    if model is None:
        if options:
            key = f"{prefix}.{next(iter(options))}"
            raise ConfigError(f"{key}: {loaded.info.key} takes no options; remove {', '.join(map(str, options))}.", key=key)
        return None
    return _validate(model, options, prefix, loaded.info.key)


def _validate(model: type[BaseModel], options: Mapping[str, Any], prefix: str, label: str) -> BaseModel:
    from pydantic import ValidationError

    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        problems = [_problem(model, detail, prefix) for detail in error.errors()]
        raise ConfigError(f"Options of {label}: {' '.join(text for _, text in problems)}", key=problems[0][0]) from error
    except Exception as error:
        text = f"{prefix}: the options model of {label} raised {type(error).__name__}: {error}. Report it to the component's authors."
        raise ConfigError(text, key=prefix) from error


def _problem(model: type[BaseModel], detail: ErrorDetails, prefix: str) -> tuple[str, str]:
    """(dotted key, sentence)."""
    location = detail["loc"]
    key = ".".join([prefix, *map(str, location)])
    if detail["type"] == "extra_forbidden":
        known = _known_keys(_model_at(model, location[:-1]))
        return key, f"{key} is not known.{did_you_mean(str(location[-1]), known)} Known options: {', '.join(known) or 'none'}."
    accepted = _accepted(model, location)
    expected = f" Accepted: {accepted}." if accepted else ""
    if detail["type"] == "missing":
        return key, f"{key} is required.{expected}"
    return key, f"{key} = {detail['input']!r} cannot be used: {detail['msg']}.{expected}"


def _known_keys(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The nested model that `location` leads to, as far as annotations tell."""
    found: type[BaseModel] | None = model
    for step in location:
        if found is None or not isinstance(step, str) or step not in found.model_fields:
            continue
        found = _nested_model(found.model_fields[step].annotation)
    return found


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((nested for argument in get_args(annotation) if (nested := _nested_model(argument)) is not None), None)


def _accepted(model: type[BaseModel], location: Sequence[int | str]) -> str:
    if not location:
        return ""
    owner = _model_at(model, location[:-1])
    found = [item for item in describe_options(owner) if item.name == location[-1]] if owner is not None else []
    return found[0].type if found else ""


def describe_options(model: type[BaseModel] | None) -> tuple[OptionDescription, ...]:
    """The options of a model in the order of its fields, read from its JSON Schema."""
    if model is None:
        return ()
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return tuple(
        OptionDescription(
            name=name,
            type=_type_in_words(part, schema.get("$defs", {})),
            default=part.get("default"),
            required=name in required,
            description=part.get("description", ""),
        )
        for name, part in schema.get("properties", {}).items()
    )


def _type_in_words(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in part:
        return _type_in_words(definitions[part["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in part:
        return " or ".join(_type_in_words(option, definitions) for option in part["anyOf"])
    if "const" in part:
        return repr(part["const"])
    if "enum" in part:
        return " or ".join(map(repr, part["enum"]))
    if part.get("type") == "array":
        return f"list of {_type_in_words(part.get('items', {}), definitions)}"
    return ", ".join([{"null": "none", "object": "table"}.get(part.get("type", ""), part.get("type", "anything")), *_limits(part)])


def _limits(part: Mapping[str, Any]) -> Iterable[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "multipleOf": "a multiple of",
        "minLength": "at least this many characters:",
        "maxLength": "at most this many characters:",
        "pattern": "matching",
    }
    return (f"{word} {part[key]}" for key, word in words.items() if key in part)
