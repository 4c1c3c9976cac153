"""Most cached tokens first, within a window and with a bound on passing over."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.engine.request import Request
from slotwise.interfaces.scheduler import SchedulableRequest
from slotwise_schedulers.longest_prefix import LongestPrefixScheduler
from slotwise_schedulers.options import LongestPrefixOptions
from slotwise_schedulers.prefix_window import PrefixWindowQueue

if TYPE_CHECKING:
    from conftest import Simulation

MakeRequest = Callable[..., Request]


class CachedTokens:
    """Pretends that `by_id` is cached, and counts questions."""

    def __init__(self) -> None:
        self.by_id: dict[str, int] = {}
        self.num_questions = 0

    def __call__(self, request: SchedulableRequest) -> int:
        self.num_questions += 1
        return self.by_id.get(request.request_id, 0)


def make_queue(cached: CachedTokens, *, window: int = 4, max_passes: int = 3, max_wait_seconds: float | None = None) -> PrefixWindowQueue:
    return PrefixWindowQueue(cached, window=window, max_passes=max_passes, max_wait_seconds=max_wait_seconds)


def start(queue: PrefixWindowQueue, now: float = 0.0) -> int:
    request = queue.peek(now)
    queue.remove(request)
    return request.arrival_index


def test_requests_that_share_a_cached_prefix_go_before_one_that_arrived_earlier(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(LongestPrefixScheduler, max_num_seqs=1)
    shared = list(range(50, 70))
    simulation.add([*shared, 1], max_tokens=1)
    simulation.step()
    simulation.add(20, max_tokens=1)
    simulation.add([*shared[:8], 2], max_tokens=1)
    simulation.add([*shared, 3], max_tokens=1)
    simulation.finish()
    assert simulation.admissions == ["r0", "r3", "r2", "r1"]
    assert simulation.reasons[1] == "most cached tokens of 3: 20"


def test_what_a_running_request_added_to_the_cache_counts_once_it_ended(make_simulation: type[Simulation]) -> None:
    simulation = make_simulation(LongestPrefixScheduler, LongestPrefixOptions(max_chunk_tokens=4), max_num_seqs=1, budget=8)
    shared = list(range(50, 62))
    simulation.add(shared, max_tokens=1)
    simulation.add([*shared[:4], 1], max_tokens=1)
    simulation.add([*shared, 2], max_tokens=1)
    simulation.finish()
    assert simulation.admissions == ["r0", "r2", "r1"]


def test_equally_many_cached_tokens_go_by_arrival(make_request: MakeRequest) -> None:
    queue = make_queue(CachedTokens())
    for index in (2, 0, 3, 1):
        queue.add(make_request(index), 0.0)
    assert [start(queue) for _ in range(4)] == [0, 1, 2, 3]


def test_only_the_window_is_compared_and_it_moves_on(make_request: MakeRequest) -> None:
    cached = CachedTokens()
    cached.by_id = {"r5": 100, "r4": 50}
    queue = make_queue(cached, window=2)
    for index in range(6):
        queue.add(make_request(index), 0.0)
    assert [start(queue) for _ in range(6)] == [0, 1, 2, 4, 5, 3]


def test_the_oldest_goes_after_so_many_passes_and_after_so_long_a_wait(make_request: MakeRequest) -> None:
    cached = CachedTokens()
    cached.by_id = {f"r{index}": 10 for index in range(1, 9)}
    queue = make_queue(cached, max_passes=3)
    for index in range(9):
        queue.add(make_request(index), 0.0)
    assert [start(queue) for _ in range(4)] == [1, 2, 3, 0]
    assert queue.reason == "its turn: 3 that arrived later started before it"
    assert start(queue) == 4
    assert queue.reason == "most cached tokens of 4: 10"
    patient = make_queue(cached, max_wait_seconds=5.0)
    for index in range(3):
        patient.add(make_request(index), 0.0)
    assert start(patient, 5.0) == 1
    assert start(patient, 5.1) == 0
    assert patient.reason == "its turn: arrived 5.1 s ago"


def test_a_preempted_request_comes_back_to_its_place_in_the_window(make_request: MakeRequest) -> None:
    queue = make_queue(CachedTokens(), window=2)
    requests = [make_request(index) for index in range(5)]
    for request in requests[1:]:
        queue.add(request, 0.0)
    queue.add(requests[0], 0.0)
    assert [start(queue) for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_step_costs_at_most_a_window_of_questions_and_none_while_nothing_changes(make_request: MakeRequest) -> None:
    cached = CachedTokens()
    queue = make_queue(cached, window=8, max_passes=1000)
    for index in range(1000):
        queue.add(make_request(index), 0.0)
    queue.peek(0.0)
    assert cached.num_questions == 8
    for step in range(50):
        queue.peek(float(step))
    queue.add(make_request(1000), 1.0)
    queue.peek(50.0)
    assert cached.num_questions == 8
    start(queue)
    queue.peek(51.0)
    assert cached.num_questions == 16


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["add", "add", "start", "start", "abort", "preempt"]), min_size=5, max_size=120),
    st.integers(1, 6),
    st.integers(0, 4),
    st.randoms(),
)
def test_passing_over_is_bounded_and_the_queue_holds_exactly_who_waits(
    make_request: MakeRequest, actions: list[str], window: int, max_passes: int, random: Random
) -> None:
    """Before a request starts, at most (q + 1) * (max_passes + 1) - 1 others do, of which q waited when it came and arrived before it; each
    preempted one that comes back counts as one more of those."""
    cached = CachedTokens()
    queue = make_queue(cached, window=window, max_passes=max_passes)
    waiting: dict[int, Request] = {}
    allowed: dict[int, int] = {}
    started: list[Request] = []
    num_arrivals = 0

    def add(request: Request) -> None:
        index = request.arrival_index
        cached.by_id[request.request_id] = random.randrange(5)
        queue.add(request, 0.0)
        allowed[index] = (1 + sum(other < index for other in waiting)) * (max_passes + 1)
        for other in waiting:
            if index < other:
                allowed[other] += max_passes + 1
        waiting[index] = request

    for action in actions:
        if action == "add":
            add(make_request(num_arrivals))
            num_arrivals += 1
        elif action == "preempt" and started:
            add(started.pop(random.randrange(len(started))))
        elif action == "abort" and waiting:
            queue.remove(waiting.pop(random.choice(list(waiting))))
        elif action == "start" and waiting:
            head = queue.peek(0.0)
            assert head.arrival_index in sorted(waiting)[:window]
            for index in waiting:
                allowed[index] -= 1
                assert allowed[index] >= 0
            queue.remove(head)
            started.append(waiting.pop(head.arrival_index))
        assert sorted(request.arrival_index for request in queue) == sorted(waiting)
        assert len(queue) == len(waiting)


def test_a_request_without_a_cached_prefix_is_served_in_the_midst_of_an_endless_stream_of_cached_ones(
    make_simulation: type[Simulation],
) -> None:
    simulation = make_simulation(LongestPrefixScheduler, LongestPrefixOptions(max_passes=5), max_num_seqs=1)
    shared = list(range(50, 70))
    simulation.add([*shared, 1], max_tokens=1)
    simulation.step()
    stranger = simulation.add(20, max_tokens=1)
    for _ in range(20):
        simulation.add([*shared, 2], max_tokens=1)
        simulation.step()
    assert simulation.admissions.index(stranger.request_id) == 1 + 5
