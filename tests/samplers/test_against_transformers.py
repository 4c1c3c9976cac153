"""Each parameter beside the logits processor of transformers that has the same meaning, on random inputs."""

from __future__ import annotations

import pytest
import torch
import transformers

from slotwise_samplers.torch_sampler import temper_and_truncate

VOCAB_SIZE = 80
CHAIN = {
    "temperature": transformers.TemperatureLogitsWarper,
    "top_k": transformers.TopKLogitsWarper,
    "top_p": transformers.TopPLogitsWarper,
    "min_p": transformers.MinPLogitsWarper,
}


def random_logits(seed, num_rows=8, vocab_size=VOCAB_SIZE):
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.3},
        {"top_p": 0.95},
        {"min_p": 0.05},
        {"temperature": 0.7, "top_k": 12, "top_p": 0.8},
        {"temperature": 1.3, "top_k": 30, "top_p": 0.6},
    ],
    ids=str,
)
def test_truncation_gives_the_same_distribution(rules, seed, tools):
    logits = random_logits(seed)
    expected = logits.clone()
    for name, value in rules.items():
        expected = CHAIN[name](value)(None, expected)
    metadata = tools.make_metadata(len(logits), **{"temperature": 1.0, **rules})
    found = temper_and_truncate(logits, logits.amax(1), metadata)
    assert torch.equal(found > -torch.inf, expected > -torch.inf)
    assert (found.softmax(1) - expected.softmax(1)).abs().max() < 1e-6


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.0])
def test_repetition_penalty(penalty, tools):
    """Theirs sees one list of ids; ours is prompt and output."""
    logits = random_logits(1)
    prompts = [[3, 9, 9], [1], [79, 0], [5, 6, 7]] * 2
    outputs = [[4], [1, 1, 2], [], [0, 5]] * 2
    rows = [tools.row(output, prompt, repetition_penalty=penalty) for prompt, output in zip(prompts, outputs, strict=True)]
    found = tools.edited(logits.tolist(), *rows)
    warper = transformers.RepetitionPenaltyLogitsProcessor(penalty)
    for row, ids in enumerate(prompt + output for prompt, output in zip(prompts, outputs, strict=True)):
        assert torch.allclose(found[row], warper(torch.tensor([ids]), logits[row : row + 1].clone())[0], rtol=1e-6)


@pytest.mark.parametrize("output", [[], [4], [4, 9], [1, 4, 9], [9, 4]])
def test_bad_words(output, tools):
    """Theirs looks at prompt and output together, ours at the output alone: the prompt is empty of them here."""
    logits = random_logits(2, 1)
    words = [[7], [4, 9, 11], [4, 12]]
    found = tools.edited(logits.tolist(), tools.row(output, [70], bad_words=words))
    expected = transformers.NoBadWordsLogitsProcessor(words)(torch.tensor([[70, *output]]), logits.clone())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("length", range(6))
def test_min_tokens(length, tools):
    logits = random_logits(3, 1)
    found = tools.edited(logits.tolist(), tools.row([8] * length, [1, 2], min_tokens=4, stop_token_ids=[5, 6]))
    warper = transformers.MinNewTokensLengthLogitsProcessor(2, 4, [5, 6])
    assert torch.equal(found, warper(torch.tensor([[1, 2, *[8] * length]]), logits.clone()))


def test_logit_bias(tools):
    logits = random_logits(4, 1)
    found = tools.edited(logits.tolist(), tools.row(logit_bias={3: 2.5, 70: -7.0}))
    warper = transformers.SequenceBiasLogitsProcessor([[[3], 2.5], [[70], -7.0]])
    assert torch.allclose(found, warper(torch.tensor([[1, 2]]), logits.clone()))


def test_allowed_ids(tools):
    logits = random_logits(5, 1)
    banned = [token_id for token_id in range(VOCAB_SIZE) if token_id not in (3, 8, 79)]
    found = tools.edited(logits.tolist(), tools.row(allowed_token_ids=[3, 8, 79]))
    assert torch.equal(found, transformers.SuppressTokensLogitsProcessor(banned)(torch.tensor([[1]]), logits.clone()))
