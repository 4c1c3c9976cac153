"""Building blocks of sampler tests, and a sampler of 30 lines in float64 that says what is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slotwise.interfaces.sampler import SampleRequest, SamplerSetup, SamplingMetadata
from slotwise_samplers.torch_sampler import TorchSampler


def make_sampler(vocab_size, **setup):
    return TorchSampler(SamplerSetup(vocab_size=vocab_size, max_num_reqs=64, device="cpu", **setup))


def make_metadata(num_rows, *, temperature=None, top_k=None, top_p=None, min_p=None, penalties=None, **fields):
    """Metadata from one value for all rows, or a list of one per row; temperature None = all greedy. penalties: (repetition, frequency,
    presence)."""

    def column(value, dtype=torch.float32):
        if value is None:
            return None
        return torch.tensor(value if isinstance(value, list) else [value] * num_rows, dtype=dtype)

    temperatures = column(temperature)
    if penalties is not None:
        names = ("repetition_penalties", "frequency_penalties", "presence_penalties")
        fields |= dict(zip(names, (column(value) for value in penalties), strict=True))
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


def run(sampler, logits, metadata):
    """Ids of one step, as a list."""
    logits = torch.as_tensor(logits).clone()
    return sampler.sample(SampleRequest(logits=logits, metadata=metadata)).token_ids.squeeze(-1).tolist()


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
        make_sampler=make_sampler, make_metadata=make_metadata, run=run, draws=draws, reference_distribution=reference_distribution
    )
