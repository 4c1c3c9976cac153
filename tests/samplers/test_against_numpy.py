"""The sampler against one of 30 lines in float64, on random inputs: equal ids for equal random numbers, equal logprobs and ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slotwise.interfaces.sampler import SamplerSetup
from slotwise_samplers.torch_sampler import TorchSampler


def plain_sampler(x, uniform, *, temperature, top_k, top_p, min_p):
    """(id, distance of the random number from the nearest edge of that id's interval, kept ids) of one row. x: [vocab_size] float64."""
    if temperature == 0:
        return int(np.argmax(x)), 1.0, np.arange(len(x))
    kept = np.isfinite(x)
    if 0 < top_k < len(x):
        kept &= x >= np.sort(x)[-top_k]
    scaled = (x - x.max()) / temperature
    p = np.where(kept, np.exp(scaled), 0.0)
    p[p < min_p * p.max()] = 0.0
    p /= p.sum()
    if top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p * (1 - 1e-6)]] = 0.0
        p /= p.sum()
    edges = np.cumsum(p)
    token_id = min(int(np.searchsorted(edges, uniform, side="right")), int(np.flatnonzero(p)[-1]))
    lower = edges[token_id] - p[token_id]
    return token_id, min(uniform - lower, edges[token_id] - uniform), np.flatnonzero(p)


def random_rules(chance):
    return {
        "temperature": float(chance.choice([0.0, 0.3, 0.8, 1.0, 1.9])),
        "top_k": int(chance.choice([0, 1, 3, 20, 10_000])),
        "top_p": float(np.float32(chance.choice([0.05, 0.4, 0.9, 1.0]))),
        "min_p": float(np.float32(chance.choice([0.0, 0.02, 0.5]))),
    }


@pytest.mark.parametrize("seed", range(30))
def test_ids_are_those_of_thirty_lines(seed, tools, monkeypatch):
    """300 batches. float32 sums may decide otherwise where a number falls within 1e-5 of an edge, or a value within 1e-6 of a limit."""
    chance = np.random.default_rng(seed)
    num_compared = num_near = 0
    for _ in range(10):
        num_rows, vocab_size = int(chance.integers(1, 12)), int(chance.choice([1, 5, 60, 700]))
        logits = (chance.normal(size=(num_rows, vocab_size)) * 3).astype(np.float32)
        logits[chance.random(logits.shape) < 0.05] = -np.inf
        logits[:, 0] = 0.5
        rules = [random_rules(chance) for _ in range(num_rows)]
        columns = {name: [row[name] for row in rules] for name in rules[0]}
        metadata = tools.make_metadata(num_rows, **columns)
        uniforms = chance.random(num_rows)
        sampler = TorchSampler(SamplerSetup(vocab_size=vocab_size, max_num_reqs=16, device="cpu"))
        monkeypatch.setattr(sampler._random, "uniforms", lambda *_, found=uniforms, **__: torch.from_numpy(found))
        found = tools.run(sampler, torch.from_numpy(logits), metadata)
        for row, token_id in enumerate(found):
            expected, distance, kept = plain_sampler(logits[row].astype(np.float64), uniforms[row], **rules[row])
            assert token_id in kept
            num_compared += 1
            if distance < 1e-5:
                num_near += 1
            else:
                assert token_id == expected, (rules[row], distance)
    assert num_near < num_compared / 20


def test_logprobs_and_ranks_are_those_of_float64(tools):
    chance = np.random.default_rng(3)
    for vocab_size in (3, 50, 5000):
        logits = (chance.normal(size=(6, vocab_size)) * 4).astype(np.float32)
        sampler = tools.make_sampler(vocab_size)
        metadata = tools.make_metadata(6, temperature=1.3, num_logprobs=2)
        output = sampler.sample(tools.make_request(torch.from_numpy(logits.copy()), metadata)).logprobs
        exact = logits.astype(np.float64)
        exact -= np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) + exact.max(1, keepdims=True)
        ids = output.token_ids.numpy()
        assert np.abs(output.logprobs.numpy() - np.take_along_axis(exact, ids, 1)).max() < 4e-7 * (np.log2(vocab_size) + 30)
        assert output.ranks.tolist() == [int((logits[row] >= logits[row, ids[row, 0]]).sum()) for row in range(6)]
        assert ids[:, 1:].tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :2].tolist()
