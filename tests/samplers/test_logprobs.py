from __future__ import annotations

import numpy as np
import pytest
import torch

from slotwise.interfaces.sampler import LOGPROBS_MODES
from slotwise_samplers.logprobs import gather_logprobs


def sample(tools, logits, *, mode="raw_logprobs", edits=None, **fields):
    logits = torch.tensor(logits)
    metadata = tools.make_metadata(len(logits), **fields)
    return tools.make_sampler(logits.shape[1], logprobs_mode=mode).sample(tools.make_request(logits, metadata, edits=edits))


def test_sampled_first_then_the_most_likely_in_falling_order(tools):
    values = torch.tensor([[-1.0, -3.0, -0.5, -2.0]])
    found = gather_logprobs(values, torch.tensor([3]), 2, mode="raw_logits")
    assert found.token_ids.tolist() == [[3, 2, 0]]
    assert found.logprobs.tolist() == [[-2.0, -0.5, -1.0]]
    assert found.ranks.tolist() == [3]


def test_ties_push_the_rank_down():
    assert gather_logprobs(torch.tensor([[-1.0, -1.0, -1.0, -9.0]]), torch.tensor([0]), 0, mode="raw_logits").ranks.tolist() == [3]


@pytest.mark.parametrize(("asked", "columns"), [(None, None), (0, 1), (2, 3), (5, 6), (99, 6), (-1, 6)])
def test_number_of_columns(tools, asked, columns):
    output = sample(tools, [[0.0, 1.0, 2.0, 3.0, 4.0]], num_logprobs=asked)
    assert (None if output.logprobs is None else output.logprobs.token_ids.shape[1]) == columns


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_modes_report_values_before_or_after_processing(tools, mode, temperature):
    logits = np.array([[1.0, 3.0, 2.0, -1.0]], dtype=np.float32)
    edits = tools.edits(4, tools.row(logit_bias={3: 10.0}, allowed_token_ids=[0, 2, 3]))
    output = sample(tools, logits.tolist(), mode=mode, temperature=temperature, top_k=2, num_logprobs=-1, edits=edits)
    expected = logits[0].astype(np.float64)
    if mode.startswith("processed"):
        expected[1], expected[3] = -np.inf, 9.0
        if temperature is not None:
            expected = expected / temperature
            expected[0] = -np.inf  # top_k
    if mode.endswith("logprobs"):
        expected = expected - np.log(np.exp(expected).sum())
    found = np.empty(4)
    found[output.logprobs.token_ids[0, 1:].numpy()] = output.logprobs.logprobs[0, 1:].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert output.logprobs.token_ids[0, 0] == output.token_ids[0, 0]
    assert output.logprobs.logprobs[0, 0].isfinite()


def test_raw_logprobs_do_not_depend_on_sampling_parameters(tools):
    logits = [[3.0, 2.0, 1.0]]
    plain = sample(tools, logits, num_logprobs=-1).logprobs.logprobs[:, 1:]
    shaped = sample(tools, logits, num_logprobs=-1, temperature=0.5, top_p=0.8).logprobs.logprobs[:, 1:]
    assert plain.equal(shaped)


def test_values_of_each_row_are_its_own(tools):
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    together = sample(tools, logits.tolist(), num_logprobs=3).logprobs
    for row in range(5):
        alone = sample(tools, logits[row : row + 1].tolist(), num_logprobs=3).logprobs
        assert alone.token_ids.equal(together.token_ids[row : row + 1])
        assert alone.logprobs.equal(together.logprobs[row : row + 1])
        assert alone.ranks.equal(together.ranks[row : row + 1])


def test_half_precision_logits_give_float32_logprobs(tools):
    logits = torch.tensor([[10.0, 11.0, 2.0]], dtype=torch.float16)
    output = tools.make_sampler(3).sample(tools.make_request(logits, tools.make_metadata(1, num_logprobs=0)))
    assert output.logprobs.logprobs.dtype == torch.float32
    torch.testing.assert_close(output.logprobs.logprobs[0, 0], logits.float().log_softmax(-1)[0, 1])
