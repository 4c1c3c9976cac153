"""The example policy starts short prompts first and preempts what it would start last."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slotwise.interfaces.scheduler import SchedulerSetup


@dataclass(frozen=True)
class Waiting:
    num_prompt_tokens: int
    arrival_index: int


@pytest.fixture
def make_policy():
    from slotwise_stranger.shortest_prompt import ShortestPromptScheduler
    from slotwise_stranger.shortest_prompt_component import ShortestPromptOptions

    def make(bucket_tokens: int):
        options = ShortestPromptOptions(bucket_tokens=bucket_tokens)
        return ShortestPromptScheduler(
            SchedulerSetup(max_num_seqs=4, max_num_scheduled_tokens=64, max_model_len=64, block_size=4, options=options)
        )

    return make


REQUESTS = [Waiting(9, 0), Waiting(3, 1), Waiting(2, 2), Waiting(8, 3)]


@pytest.mark.parametrize(("bucket_tokens", "arrivals"), [(1, [2, 1, 3, 0]), (4, [1, 2, 0, 3]), (100, [0, 1, 2, 3])])
def test_order_is_by_bucket_of_prompt_length_then_arrival(make_policy, bucket_tokens, arrivals):
    policy = make_policy(bucket_tokens)
    assert [request.arrival_index for request in sorted(REQUESTS, key=lambda request: policy.order_key(request, 0.0))] == arrivals


def test_victim_is_last_in_the_order_and_the_reason_says_so(make_policy):
    victim = make_policy(1).choose_victim(REQUESTS, REQUESTS[1])
    assert victim.request is REQUESTS[0]
    assert victim.reason == "longest prompt (9 tokens)"
