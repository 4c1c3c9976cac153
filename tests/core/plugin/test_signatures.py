from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest

from slotwise.plugin.signatures import accepts_calls_of, method_mismatches


def wanted(self: Any, request: Any, n: int, *, prefix: Any = None, strict: bool = False) -> None: ...


def same(self, request, n, *, prefix=None, strict=False): ...


def other_self(this, request, n, *, prefix=None, strict=False): ...


def all_by_position(self, request, n, prefix=None, strict=False): ...


def extra_optional(self, request, n, extra=0, *, prefix=None, strict=False, more=None): ...


def catch_all(self, *args, **kwargs): ...


def keywords(self, request, n, **rest): ...


def extra_required(self, request, n, extra, *, prefix=None, strict=False): ...


def extra_required_keyword(self, request, n, *, prefix=None, strict=False, more): ...


def missing(self, request, *, prefix=None, strict=False): ...


def missing_keyword(self, request, n, *, prefix=None): ...


def now_required(self, request, n, *, prefix, strict=False): ...


def renamed(self, req, n, *, prefix=None, strict=False): ...


def swapped(self, n, request, *, prefix=None, strict=False): ...


def positional_only(self, request, n, /, *, prefix=None, strict=False): ...


def without_self(request, n, *, prefix=None, strict=False): ...


GOOD = [same, other_self, all_by_position, extra_optional, catch_all, keywords]
BAD = [
    extra_required,
    extra_required_keyword,
    missing,
    missing_keyword,
    now_required,
    renamed,
    swapped,
    positional_only,
    without_self,
]


@pytest.mark.parametrize("found", GOOD)
def test_accepts_whatever_takes_every_legal_call(found: Callable[..., None]) -> None:
    assert accepts_calls_of(inspect.signature(found), inspect.signature(wanted))


@pytest.mark.parametrize("found", BAD)
def test_refuses_whatever_some_legal_call_would_fail_on(found: Callable[..., None]) -> None:
    assert not accepts_calls_of(inspect.signature(found), inspect.signature(wanted))


class Contract(ABC):
    def __init__(self, setup: Any) -> None:
        self.setup = setup

    @abstractmethod
    def run(self, call: Any) -> None: ...

    def optional(self, x: int = 0) -> int:
        return x

    @property
    @abstractmethod
    def size(self) -> int: ...

    def _private(self) -> int:
        return 0


class Sound(Contract):
    def run(self, call: Any) -> None: ...

    size = 3  # type: ignore[assignment]


def subclass(**members: Any) -> type:
    return type("Found", (Sound,), members)


def test_a_sound_subclass_has_no_mismatch_and_private_methods_are_free() -> None:
    assert method_mismatches(Sound, Contract) == []
    assert method_mismatches(subclass(_private=lambda self, a, b: None, run=classmethod(lambda cls, call: None)), Contract) == []


async def coroutine(self: Any, call: Any) -> None: ...


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"run": lambda self: None}, "run cannot be called as the contract calls it: wanted run(self, call), found run(self)"),
        ({"run": coroutine}, "must not be a coroutine"),
        ({"run": 3}, "run must be a method, found 3"),
        ({"run": staticmethod(lambda self, call: None)}, "run must be a method"),
        ({"optional": lambda self: None}, "optional"),
        ({"size": lambda self: 3}, "size must be a property"),
        ({"__init__": lambda self, setup, more: None}, "__init__(self, setup), found __init__(self, setup, more)"),
    ],
)
def test_a_mismatch_names_the_method_what_is_wanted_and_what_was_found(members: dict[str, Any], text: str) -> None:
    (fault,) = method_mismatches(subclass(**members), Contract)
    assert text in fault
