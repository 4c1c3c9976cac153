from __future__ import annotations

import math

import numpy as np
import pytest

from slotwise.errors import InvalidRequestError
from slotwise.sampling_params import OutputKind, SamplingParams

NAN, INF = math.nan, math.inf

REFUSED = [
    *[("temperature", value) for value in (NAN, INF, -INF, -0.1, 5, "NaN", None, True, 10**400)],
    *[("top_p", value) for value in (NAN, INF, 0, 1.1, -1, "1")],
    *[("min_p", value) for value in (NAN, INF, -0.1, 2, False)],
    *[("top_k", value) for value in (NAN, -2, 1.0, "5", True)],
    *[("presence_penalty", value) for value in (NAN, INF, -2.1, 100)],
    *[("frequency_penalty", value) for value in (NAN, -INF, 2.1, 100)],
    *[("repetition_penalty", value) for value in (NAN, INF, 0, -1)],
    *[("n", value) for value in (0, -1, 1.5, True, 10**9)],
    *[("max_tokens", value) for value in (-1, 1.0, True)],
    *[("min_tokens", value) for value in (-1, 2.0, None)],
    *[("logprobs", value) for value in (NAN, -2, 1.0, True, "5")],
    *[("prompt_logprobs", value) for value in (-2, True)],
    *[("seed", value) for value in (NAN, 1.5, True, 2**64, -(2**63) - 1, "1")],
    *[("stop", value) for value in ([""], "", [1], 5, {"a": 1}, b"x")],
    *[("stop_token_ids", value) for value in ([-1], [1.0], [True], "12", 3)],
    *[("bad_words", value) for value in ([""], [3])],
    *[("allowed_token_ids", value) for value in ([], [-1], [True])],
    *[("logit_bias", value) for value in ({1: NAN}, {1: INF}, {-1: 1.0}, {"x": 1.0}, {1.5: 1}, {1: "2"}, [1], {"²": 1})],
    *[("ignore_eos", value) for value in (1, "true", None)],
    *[("detokenize", value) for value in (0, "false")],
    *[("output_kind", value) for value in ("all", 1, None)],
    *[("stream_interval", value) for value in (0, 1.5)],
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_served_is_refused_by_field(name, value):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)
    assert len(str(caught.value)) < 300


def test_defaults_are_accepted():
    params = SamplingParams()
    assert (params.n, params.temperature, params.max_tokens, params.output_kind) == (1, 1.0, 16, OutputKind.CUMULATIVE)


@pytest.mark.parametrize(
    ("given", "kept"), [(0, 0.0), (1e-12, 0.0), (9e-6, 0.0), (1e-5, 0.01), (1e-3, 0.01), (0.01, 0.01), (0.7, 0.7), (2, 2.0), (-0.0, 0.0)]
)
def test_temperature_rule(given, kept):
    assert SamplingParams(temperature=given).temperature == kept


def test_greedy_switches_truncation_off():
    params = SamplingParams(temperature=0, top_p=0.5, top_k=7, min_p=0.1)
    assert (params.top_p, params.top_k, params.min_p, params.is_greedy) == (1.0, 0, 0.0, True)


def test_greedy_with_several_completions_is_refused():
    with pytest.raises(InvalidRequestError, match="greedy") as caught:
        SamplingParams(temperature=0, n=2)
    assert caught.value.param == "n"


@pytest.mark.parametrize(("given", "kept"), [(-1, None), (None, None), (0, 0), (2**64 - 1, 2**64 - 1), (-5, -5)])
def test_seed_minus_one_means_none(given, kept):
    assert SamplingParams(seed=given).seed == kept


def test_stop_may_be_one_string():
    assert SamplingParams(stop="END").stop == ["END"]
    assert SamplingParams(stop=None, stop_token_ids=None, bad_words=None).stop == []


def test_lists_are_copied():
    stop, ids, bias = ["a"], [1], {1: 2.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, allowed_token_ids=ids, logit_bias=bias)
    stop.append("b")
    ids.append(2)
    bias[3] = 1.0
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids, params.logit_bias) == (["a"], [1], [1], {1: 2.0})


def test_clone_shares_nothing_mutable():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, temperature=0.5)
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")
    copy.logit_bias[2] = 1.0
    assert (params.stop, params.logit_bias) == (["a"], {1: 2.0})


def test_logit_bias_is_clamped_and_takes_json_keys():
    assert SamplingParams(logit_bias={"5": 150, 6: -1e9, 7: 1}).logit_bias == {5: 100.0, 6: -100.0, 7: 1.0}
    assert SamplingParams(logit_bias={}).logit_bias is None


def test_numpy_numbers_are_numbers():
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(4), stop_token_ids=np.array([1, 2]))
    assert (params.temperature, params.top_k, params.stop_token_ids) == (0.5, 4, [1, 2])
    assert type(params.top_k) is int


def test_stop_strings_need_detokenization():
    with pytest.raises(InvalidRequestError, match="detokenize") as caught:
        SamplingParams(stop="x", detokenize=False)
    assert caught.value.param == "stop"


def test_min_tokens_within_max_tokens():
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=5, max_tokens=None).min_tokens == 5


def test_top_k_has_one_spelling_for_off():
    assert SamplingParams(top_k=-1).top_k == 0
