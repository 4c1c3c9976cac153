"""Engines with `kv_cache.sanitize`: the built-in backends raise no alarm and give the same tokens; a faulty one is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from transformers import Gemma2Config, PreTrainedModel

from slotwise import LLM, SamplingParams
from slotwise.engine.attention_dispatch import GroupBackends
from slotwise.engine.scheduler_output import SchedulerOutput
from slotwise.errors import KVSanitizerError
from slotwise.interfaces.attention import MetadataRequest
from slotwise.sanitizer.dispatch import SanitizedAttentionDispatch
from slotwise.sanitizer.faults import KVFault
from slotwise_backends.reference import ReferenceAttention, RequestRows

if TYPE_CHECKING:
    from conftest import SharedModel

SHARED = list(range(1, 22))
PROMPTS = [[7], [9] * 5, SHARED, [*SHARED, 40, 41], [*SHARED[:14], 50], list(range(60, 95))]
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)


def ids(llm: LLM, prompts: Any = PROMPTS, params: Any = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def merged(settings: dict[str, Any], **kv_cache: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"attention": "torch_sdpa", "max_num_seqs": 6, "max_model_len": 64, "block_size": 4, **settings}
    return {**base, "kv_cache": {"num_blocks": 80, **settings.get("kv_cache", {}), **kv_cache}}


def sanitized(make_engine: Callable[..., LLM], settings: dict[str, Any]) -> tuple[LLM, list[SchedulerOutput]]:
    """An engine with the sanitizer, and the list that its steps' records go to."""
    llm = make_engine(**merged(settings, sanitize=True))
    core, records = llm.engine.core, []
    assert isinstance(core.executor.attention, SanitizedAttentionDispatch)  # type: ignore[attr-defined]
    schedule = core.scheduler.schedule

    def recorded() -> SchedulerOutput:
        records.append(schedule())
        return records[-1]

    core.scheduler.schedule = recorded  # type: ignore[method-assign]
    return llm, records


SETTINGS: list[tuple[str, dict[str, Any], Callable[[SchedulerOutput], object] | None]] = [
    ("plain", {}, None),
    ("reference", {"attention": "reference"}, None),
    ("chunked", {"max_num_batched_tokens": 8, "max_num_seqs": 5, "block_size": 3}, lambda record: record.total_num_scheduled_tokens == 8),
    ("preempting", {"kv_cache": {"num_blocks": 16}}, lambda record: record.preempted_request_ids),
    (
        "split phases",
        {"attention": {"use": "torch_sdpa", "per_phase": {"decode": "reference"}}, "max_num_batched_tokens": 16},
        lambda record: len(set(record.num_scheduled_tokens.values())) > 1,
    ),
    ("without prefix cache", {"kv_cache": {"enable_prefix_caching": False}}, None),
    ("partial hits", {"kv_cache": {"use": "radix", "num_blocks": 30}}, lambda record: record.block_copies),
    (
        "asynchronous",
        {"scheduler": {"async_scheduling": True}, "kv_cache": {"num_blocks": 20}},
        lambda record: record.preempted_request_ids,
    ),
    ("bfloat16 cache", {"kv_cache": {"dtype": "bfloat16"}}, None),
    ("heads outside", {"kv_cache": {"layout": "hnd"}}, None),
]


@pytest.mark.parametrize(("settings", "must_happen"), [entry[1:] for entry in SETTINGS], ids=[entry[0] for entry in SETTINGS])
def test_built_in_backends_raise_no_alarm_and_tokens_are_the_same(
    settings: dict[str, Any],
    must_happen: Callable[[SchedulerOutput], object] | None,
    tiny: SharedModel,
    assert_idle: Callable[[LLM], None],
) -> None:
    expected = ids(tiny.engine(**merged(settings)))
    llm, records = sanitized(tiny.engine, settings)
    for _ in range(2):  # the second time with a warm cache
        assert ids(llm) == expected
        assert_idle(llm)
    assert must_happen is None or any(must_happen(record) for record in records)
    llm.shutdown()


@pytest.mark.parametrize(
    "settings",
    [{"kv_cache": {"num_blocks": 40}}, {"max_num_batched_tokens": 8, "max_num_seqs": 5, "attention": "reference"}],
    ids=["preempting", "chunked"],
)
def test_groups_that_share_memory_and_windows_raise_no_alarm(
    settings: dict[str, Any],
    tmp_path: Path,
    shared_model: type[SharedModel],
    save_tiny_model: Callable[..., PreTrainedModel],
    assert_idle: Callable[[LLM], None],
) -> None:
    config = Gemma2Config(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=9,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    save_tiny_model(tmp_path, config)
    model = shared_model(str(tmp_path), dtype="float32")
    expected = ids(model.engine(**merged(settings)))
    llm, records = sanitized(model.engine, settings)
    for _ in range(2):
        assert ids(llm) == expected
        assert_idle(llm)
    held = [blocks.block_ids for record in records for blocks in record.held_blocks.values()]
    assert any(0 in table for of_groups in held for table in of_groups)  # blocks left the window


class ReadsOnePastSeqLen(ReferenceAttention):
    """Every request seems one token longer, its rows one position later."""

    def build_metadata(self, request: MetadataRequest) -> tuple[RequestRows, ...]:
        return tuple(replace(rows, seq_len=rows.seq_len + 1) for rows in super().build_metadata(request))


class KeepsItsTables(ReferenceAttention):
    """Looks a row's table up once and never again."""

    def build_metadata(self, request: MetadataRequest) -> tuple[RequestRows, ...]:
        rows = super().build_metadata(request)
        self.known = getattr(self, "known", None) or [row.blocks for row in rows]
        return tuple(replace(row, blocks=self.known[min(index, len(self.known) - 1)]) for index, row in enumerate(rows))


def put_in(llm: LLM, backend: type[ReferenceAttention]) -> None:
    dispatch = llm.engine.core.executor.attention  # type: ignore[attr-defined]
    (group,) = dispatch.groups
    faulty = backend(group.decode.setup)
    dispatch.groups = (GroupBackends(prefill=faulty, decode=faulty),)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_faulty_backend_stops_the_step_and_the_engine_serves_on(
    asynchronous: bool, tiny: SharedModel, assert_idle: Callable[[LLM], None]
) -> None:
    settings = {"attention": "reference", "scheduler": {"async_scheduling": asynchronous}}
    llm, _ = sanitized(tiny.engine, settings)
    expected = ids(llm)
    right = llm.engine.core.executor.attention.groups  # type: ignore[attr-defined]
    put_in(llm, ReadsOnePastSeqLen)
    with pytest.raises(KVSanitizerError, match="position 6 is past the request's 6 tokens") as caught:
        ids(llm, [[1, 2, 3, 4, 5, 6]])
    assert caught.value.fault is KVFault.READ_PAST_SEQ_LEN
    assert caught.value.request_id is not None
    assert caught.value.layer == tiny.engine(**merged(settings)).engine.core.executor.attention.layers[0].layer.name  # type: ignore[attr-defined]
    llm.engine.core.executor.attention.groups = right  # type: ignore[attr-defined]
    assert_idle(llm)
    assert ids(llm) == expected
    llm.shutdown()


def test_a_stale_block_table_is_found_when_a_row_moves(tiny: SharedModel) -> None:
    llm, _ = sanitized(tiny.engine, {"attention": "reference"})
    put_in(llm, KeepsItsTables)
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (1, 6)]
    with pytest.raises(KVSanitizerError, match="stale block table"):
        ids(llm, [list(range(20, 27)), list(range(1, 7))], params)


def test_nothing_of_it_is_there_when_it_is_off(tiny: SharedModel) -> None:
    core = tiny.engine(**merged({})).engine.core
    assert not isinstance(core.executor.attention, SanitizedAttentionDispatch)  # type: ignore[attr-defined]
    assert not core.scheduler.record_held_blocks
