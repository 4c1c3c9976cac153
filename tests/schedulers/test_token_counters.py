"""Who was served least, against the definition written out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise_schedulers.token_counters import TokenCounters


def waiting_counters(*client_ids: str, **weights: float) -> TokenCounters:
    counters = TokenCounters(weights)
    for client_id in client_ids:
        counters.enter(client_id)
        counters.start_waiting(client_id)
    return counters


def test_the_least_charged_client_is_next_and_the_first_to_wait_among_equals() -> None:
    counters = waiting_counters("b", "a")
    assert counters.least_served() == "b"
    counters.charge("b", 5)
    assert counters.least_served() == "a"
    counters.charge("a", 6)
    assert counters.least_served() == "b"


def test_a_client_that_starts_to_wait_is_lifted_to_the_least_served_of_those_that_wait() -> None:
    counters = waiting_counters("a", "b")
    counters.charge("a", 10)
    counters.charge("b", 30)
    counters.enter("new")
    counters.start_waiting("new")
    assert counters["new"] == 10
    counters.stop_waiting("new")
    counters.charge("a", 15)
    counters.start_waiting("new")
    assert counters["new"] == 25


def test_a_client_that_comes_when_nobody_waits_is_lifted_to_the_last_that_did() -> None:
    counters = waiting_counters("a")
    counters.charge("a", 40)
    counters.stop_waiting("a")
    counters.enter("b")
    counters.start_waiting("b")
    assert counters["b"] == 40


def test_a_client_served_beyond_the_others_is_not_lowered_when_it_comes_back() -> None:
    counters = waiting_counters("a", "b")
    counters.charge("a", 40)
    counters.stop_waiting("a")
    counters.start_waiting("a")
    assert counters["a"] == 40


def test_weights_divide_charges() -> None:
    counters = waiting_counters("a", "b", a=4.0)
    counters.charge("a", 40)
    counters.charge("b", 20)
    assert (counters["a"], counters["b"]) == (10, 20)


def test_nobody_waits_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        TokenCounters({}).least_served()


def test_clients_that_left_are_forgotten_once_the_others_caught_up() -> None:
    counters = waiting_counters("stays")
    for number in range(100):
        client_id = f"visitor{number}"
        counters.enter(client_id)
        counters.start_waiting(client_id)
        counters.charge(client_id, 10)
        counters.stop_waiting(client_id)
        counters.leave(client_id)
    assert "visitor0" in counters, "it was served more than who waits, and must not get rid of that by leaving"
    counters.charge("stays", 11)
    counters.enter("last")
    counters.leave("last")
    assert [f"visitor{number}" for number in range(100) if f"visitor{number}" in counters] == []
    assert "stays" in counters


def test_no_more_idle_clients_are_remembered_than_asked_for_the_most_served_longest() -> None:
    counters = TokenCounters({}, max_idle=10)
    counters.enter("waits")
    counters.start_waiting("waits")
    for number in range(50):
        counters.enter(f"visitor{number}")
        counters.charge(f"visitor{number}", 1 + number % 25)
        counters.leave(f"visitor{number}")
    known = [number for number in range(50) if f"visitor{number}" in counters]
    assert sorted(number % 25 for number in known) == sorted([*range(20, 25)] * 2)


class Definition:
    """The paper's algorithm, linear in everything."""

    def __init__(self) -> None:
        self.counter: dict[str, float] = {}
        self.num_waiting: dict[str, int] = {}
        self.level = 0.0

    def waiting(self) -> list[str]:
        return [client_id for client_id, number in self.num_waiting.items() if number]

    def lowest(self) -> float:
        return min((self.counter[client_id] for client_id in self.waiting()), default=self.level)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["arrive", "start", "finish", "charge", "abort"]), st.sampled_from("abcde"), st.integers(1, 9)),
        max_size=80,
    )
)
def test_counters_equal_the_papers_definition(actions: list[tuple[str, str, int]]) -> None:
    counters, definition = TokenCounters({}), Definition()
    num_running: dict[str, int] = dict.fromkeys("abcde", 0)
    for action, client_id, amount in actions:
        num_waiting = definition.num_waiting.get(client_id, 0)
        if action == "arrive":
            counters.enter(client_id)
            counters.start_waiting(client_id)
            if not num_waiting:
                definition.counter[client_id] = max(definition.counter.get(client_id, 0.0), definition.lowest())
            definition.num_waiting[client_id] = num_waiting + 1
        elif action in ("start", "abort") and num_waiting:
            counters.charge(client_id, amount)
            counters.stop_waiting(client_id)
            definition.counter[client_id] += amount
            definition.num_waiting[client_id] = num_waiting - 1
            if num_waiting == 1:
                definition.level = definition.counter[client_id]
            if action == "start":
                num_running[client_id] += 1
            else:
                counters.charge(client_id, -amount)
                counters.leave(client_id)
                definition.counter[client_id] -= amount
        elif action == "charge" and num_running[client_id]:
            counters.charge(client_id, amount)
            definition.counter[client_id] += amount
        elif action == "finish" and num_running[client_id]:
            num_running[client_id] -= 1
            counters.leave(client_id)
        for waiting_id in definition.waiting():
            assert counters[waiting_id] == definition.counter[waiting_id]
        if definition.waiting():
            assert definition.counter[counters.least_served()] == definition.lowest()
