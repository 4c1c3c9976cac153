"""Building blocks of sampler tests, and a sampler of 30 lines in float64 that says what is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slotwise.engine.logits_processors import LogitsProcessors
from slotwise.interfaces.logits_processor import BatchUpdate, LogitsProcessorSetup, LogitsRows, RowRequest
from slotwise.interfaces.sampler import SampleRequest, SamplerSetup, SamplingMetadata
from slotwise.sampling_params import SamplingParams
from slotwise_samplers.processors.allowed_token_ids import AllowedTokenIds
from slotwise_samplers.processors.bad_words import BadWords
from slotwise_samplers.processors.logit_bias import LogitBias
from slotwise_samplers.processors.min_tokens import MinTokens
from slotwise_samplers.processors.penalties import Penalties
from slotwise_samplers.processors.thinking_budget import ThinkingBudget
from slotwise_samplers.torch_sampler import TorchSampler


def make_sampler(vocab_size, **setup):
    return TorchSampler(SamplerSetup(vocab_size=vocab_size, max_num_reqs=64, device="cpu", **setup))


def make_metadata(num_rows, *, temperature=None, top_k=None, top_p=None, min_p=None, **fields):
    """Metadata from one value for all rows, or a list of one per row; temperature None = all greedy."""

    def column(value, dtype=torch.float32):
        if value is None:
            return None
        return torch.tensor(value if isinstance(value, list) else [value] * num_rows, dtype=dtype)

    temperatures = column(temperature)
    return SamplingMetadata(
        num_rows=num_rows,
        all_greedy=temperatures is None,
        all_random=temperatures is not None and bool((temperatures >= 1e-5).all()),
        temperature=temperatures,
        top_k=column(top_k, torch.int32),
        top_p=column(top_p),
        min_p=column(min_p),
        **fields,
    )


def make_request(logits, metadata, *, positions=None, **fields):
    """positions: one for all rows, or one each."""
    positions = [positions or 0] * len(logits) if not isinstance(positions, list) else positions
    return SampleRequest(logits=logits, metadata=metadata, positions=positions, **fields)


def run(sampler, logits, metadata, **fields):
    """Ids of one step, as a list."""
    logits = torch.as_tensor(logits).clone()
    return sampler.sample(make_request(logits, metadata, **fields)).token_ids.squeeze(-1).tolist()


PROCESSORS = (AllowedTokenIds, BadWords, MinTokens, LogitBias, ThinkingBudget, Penalties)


def row(output=(), prompt=(), *, stop_token_ids=(), bad_words=(), **params):
    """A request as processors see it. output: a list that the test may let grow."""
    return RowRequest(
        sampling_params=SamplingParams(max_tokens=10**6, **params),
        prompt_token_ids=list(prompt),
        output_token_ids=output if isinstance(output, list) else list(output),
        stop_token_ids=frozenset(stop_token_ids),
        bad_words_token_ids=bad_words,
    )


def make_processors(vocab_size, *rows, encode=None):
    """The built-in processors, told of these rows."""
    setup = LogitsProcessorSetup(vocab_size=vocab_size, max_num_reqs=64, device="cpu", encode=encode)
    processors = LogitsProcessors([processor(setup) for processor in PROCESSORS])
    processors.update(BatchUpdate(num_rows=len(rows), added=list(enumerate(rows))))
    return processors


def plain_rows(num_rows):
    return LogitsRows(requests=range(num_rows), drafts=((),) * num_rows)


def edits(vocab_size, *rows, encode=None):
    """What a sampler gets for these rows; None if they want nothing."""
    return make_processors(vocab_size, *rows, encode=encode).bind(plain_rows(len(rows)))


def edited(logits, *rows, encode=None):
    """Logits after the processors."""
    logits = torch.tensor(logits, dtype=torch.float32)
    bound = edits(logits.shape[1], *rows, encode=encode)
    if bound is not None:
        bound.before_argmax(logits)
    return logits


def draws(logits, num_draws, *, seed=0, **metadata):
    """Ids drawn for one row of logits, num_draws of them."""
    logits = torch.as_tensor(logits)
    rows = logits.expand(num_draws, -1)
    return run(make_sampler(logits.shape[-1], seed=seed), rows, make_metadata(num_draws, **metadata))


def reference_distribution(logits, *, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0, repetition=1.0, frequency=0.0, presence=0.0,
                           prompt=(), output=(), banned=(), bias=None):  # fmt: skip
    """Probabilities of the next id of one row, float64, by the rules of the sampler contract and without any cleverness."""
    x = np.asarray(logits).astype(np.float64)
    for token_id in banned:
        x[token_id] = -np.inf
    for token_id, value in (bias or {}).items():
        x[token_id] += min(max(value, -100), 100)
    for token_id in set(prompt) | set(output):
        x[token_id] = x[token_id] / repetition if x[token_id] > 0 else x[token_id] * repetition
    for token_id in set(output):
        x[token_id] -= frequency * list(output).count(token_id) + presence
    if temperature < 1e-5:
        return np.eye(len(x))[int(np.argmax(x))]
    x = x / temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    if top_k > 0:
        p[p < np.sort(p)[-min(top_k, len(p))]] = 0
    p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p * (1 - 1e-6)]] = 0
    return p / p.sum()


@pytest.fixture
def healthy():
    return torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0], [0.0, 5.0, 1.0, 2.0]])


@pytest.fixture(scope="session")
def tools():
    """The functions above, for test modules, which cannot import a conftest."""
    return SimpleNamespace(
        make_sampler=make_sampler,
        make_metadata=make_metadata,
        make_request=make_request,
        run=run,
        draws=draws,
        row=row,
        make_processors=make_processors,
        plain_rows=plain_rows,
        edits=edits,
        edited=edited,
        reference_distribution=reference_distribution,
    )
