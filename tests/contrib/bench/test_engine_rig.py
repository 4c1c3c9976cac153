"""The rig plays a real engine: one token per request and step, nothing lost."""

from __future__ import annotations

from typing import Any

import pytest

from slotwise_contrib.bench.engine_rig import PARTS


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "longest_prefix", "deadline"])
@pytest.mark.parametrize("kv_cache", ["paged", "radix", "no_prefix"])
def test_every_running_request_gets_one_token_per_step(make_rig: Any, policy: str, kv_cache: str) -> None:
    rig = make_rig(8, policy=policy, kv_cache=kv_cache)
    before = [request.num_output_tokens for request in rig.scheduler.running]
    for _ in range(3):
        rig.step()
    assert [request.num_output_tokens for request in rig.scheduler.running] == [count + 3 for count in before]
    assert len(before) == 8


def test_waiting_requests_stay_waiting_and_leave_when_told(make_rig: Any) -> None:
    rig = make_rig(4)
    rig.set_waiting(20)
    rig.step()
    assert (rig.scheduler.num_waiting, len(rig.scheduler.running)) == (20, 4)
    rig.set_waiting(3)
    assert rig.scheduler.num_waiting == 3


def test_each_part_of_a_step_is_timed_and_with_text_means_text(make_rig: Any) -> None:
    rig = make_rig(2)
    assert tuple(rig.step()) == PARTS
    scheduled = rig.scheduler.schedule()
    rig.runner.execute_model(scheduled)
    outputs = rig.scheduler.update_from_output(scheduled, rig.runner.sample_tokens())
    assert [output.outputs[0].text for output in rig.outputs.process(outputs).request_outputs] == ["", ""]
    assert all(output.outputs[0].text for output in rig.text_outputs.process(outputs).request_outputs)


def test_blocks_are_needed_by_equally_many_requests_in_each_step(make_rig: Any) -> None:
    rig = make_rig(8, block_size=4)
    gains = []
    for _ in range(8):
        free = rig.kv_cache.num_free_blocks
        rig.step()
        gains.append(free - rig.kv_cache.num_free_blocks)
    assert gains == [2] * 8
