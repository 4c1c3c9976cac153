"""Cases of the `sampler` slot: verification of drafts keeps distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from slotwise.testing.sampler_arguments import Drafts
from slotwise.testing.sampler_kit import GREEDY, SamplerKit
from slotwise.testing.sampler_truth import Rules, distribution, require_distribution

NUM_REQUESTS = 1000
"""Per call."""
ROUNDS = 20
"""Calls per distribution."""


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Where the drafts of a case come from."""

    probs: torch.Tensor | None
    """[vocab_size] float32; zeros or None = `only` is the only candidate."""
    only: int | None = None

    def drafts(self, num: int, chance: np.random.Generator) -> list[int]:
        """[num]."""
        if self.only is not None or self.probs is None:
            return [self.only or 0] * num
        weights = self.probs.double().numpy()
        drawn: list[int] = chance.choice(len(weights), size=num, p=weights / weights.sum()).tolist()
        return drawn


P = torch.tensor([0.6, 0.3, 0.1])
SAMPLED = DraftModel(torch.tensor([0.3, 0.4, 0.3]))


class SamplerDraftCases(SamplerKit):
    """One rule each. Nothing is examined of a sampler that does not claim `speculative`."""

    def test_certain_drafts_keep_the_distribution(self) -> None:
        """A draft without probabilities is kept with its probability, else replaced by the rest: p = .6 .3 .1, draft 0."""
        for draft in range(3):
            self._require_first_tokens(P, DraftModel(None, only=draft), what=f"certain draft {draft}")

    def test_sampled_drafts_keep_the_distribution(self) -> None:
        """A draft drawn from q is kept with min(1, p / q), else one comes from max(p - q, 0)."""
        self._require_first_tokens(P, SAMPLED, what="sampled drafts")

    def test_drafts_of_a_wrong_model_keep_the_distribution(self) -> None:
        """q far from p, and q that gives nothing to ids that p likes."""
        p = self.random_logits(1, 12, seed=52)[0].softmax(dim=0)
        for q in (torch.tensor([0.9, *[0.1 / 11] * 11]), torch.tensor([0.0, 0.0, *[0.1] * 10])):
            self._require_first_tokens(p, DraftModel(q), what="a draft model far off")

    def test_certain_drafts_among_sampled_ones_keep_the_distribution(self) -> None:
        """A row of zeros in `draft_probs` means a draft that was the only candidate; other requests have sampled ones."""
        self._require_first_tokens(P, DraftModel(torch.zeros(3), only=1), SAMPLED, what="certain drafts among sampled ones")

    def test_truncation_holds_for_drafts(self) -> None:
        """p is the distribution after temperature, top_k and top_p; drafts outside of it are never kept."""
        p = self.random_logits(1, 12, seed=53)[0].softmax(dim=0)
        rules = Rules(temperature=0.7, top_k=5, top_p=0.9)
        self._require_first_tokens(p, DraftModel(torch.full((12,), 1 / 12)), rules=rules, what="uniform drafts under truncation")

    def test_seeded_drafts_keep_the_distribution(self) -> None:
        """One random number must not decide both whether a draft is kept and what replaces it."""
        self.require_claim("per_request_seeds")
        p, q = self.random_logits(2, 12, seed=57, spread=1.0).softmax(dim=1)
        self._require_first_tokens(p, DraftModel(q), what="sampled drafts and seeds", has_seeds=True)

    def test_second_tokens_and_bonus_tokens_follow_their_own_rows(self) -> None:
        """Behind a kept draft comes a token of the next row, behind the last one a token of the bonus row."""
        self.require_claim("speculative")
        logits = self.random_logits(3, 6, seed=54)
        truth = [distribution(row, Rules()) for row in logits]
        drafts = [int(logits[0].argmax()), int(logits[1].argmax())]
        sampler = self.make_sampler(6)
        seen: list[list[int]] = [[], [], []]
        for _ in range(ROUNDS):
            rows = logits.repeat(NUM_REQUESTS, 1)
            output = self.sample(sampler, rows, Rules(), drafts=Drafts([drafts] * NUM_REQUESTS)).token_ids
            seen[0] += output[:, 0].tolist()
            kept_first = output[output[:, 0] == drafts[0]]
            seen[1] += kept_first[:, 1].tolist()
            seen[2] += kept_first[kept_first[:, 1] == drafts[1]][:, 2].tolist()
        for place, (ids, expected) in enumerate(zip(seen, truth, strict=True)):
            require_distribution(ids, expected, f"token {place} of requests with two drafts")

    def test_each_draft_has_its_own_probabilities(self) -> None:
        """Requests of two, no and one sampled draft: every token follows its own row."""
        self.require_claim("speculative")
        chance = np.random.default_rng(self.seed)
        truth = self.random_logits(6, 6, seed=59, spread=1.0)
        q = self.random_logits(3, 6, seed=60, spread=1.0).softmax(dim=1)
        sampler, count = self.make_sampler(6), NUM_REQUESTS // 3
        seen: list[list[int]] = [[] for _ in range(6)]
        for _ in range(ROUNDS):
            drawn = zip(*(DraftModel(row).drafts(count, chance) for row in q), strict=True)
            token_ids = [of_one for first, second, other in drawn for of_one in ([first, second], [], [other])]
            probs = [q[:2], q[:0], q[2:]] * count
            output = self.sample(sampler, truth.repeat(count, 1), Rules(), drafts=Drafts(token_ids, probs)).token_ids.tolist()
            for request, tokens in enumerate(output):
                first_row = (0, 3, 4)[request % 3]
                for place, token_id in enumerate(token for token in tokens if token >= 0):
                    seen[first_row + place].append(token_id)
        for row, ids in enumerate(seen):
            require_distribution(ids, distribution(truth[row], Rules()), f"tokens of row {row} of requests with 2, 0 and 1 drafts")

    def test_mixed_batches_of_drafts(self) -> None:
        """Greedy and random requests with different numbers of drafts: each first token as it would be alone."""
        self.require_claim("speculative")
        logits = self.random_logits(1, 6, seed=56)[0]
        best = int(logits.argmax())
        sampler = self.make_sampler(6)
        drafts = Drafts([[best], [], [(best + 1) % 6, best], [best]] * 250)
        rules = [GREEDY, Rules(), Rules(temperature=0.6), Rules(top_k=2)]
        seen: list[list[int]] = [[] for _ in rules]
        for _ in range(ROUNDS):
            output = self.sample(sampler, logits.expand(drafts.first_rows()[-1], -1), rules * 250, drafts=drafts).token_ids[:, 0].tolist()
            for number in range(len(rules)):
                seen[number] += output[number :: len(rules)]
        for each, ids in zip(rules, seen, strict=True):
            require_distribution(ids, distribution(logits, each), f"first tokens of requests with {each} in a mixed batch")

    def _require_first_tokens(
        self, p: torch.Tensor, *models: DraftModel, what: str, rules: Rules | None = None, has_seeds: bool = False
    ) -> None:
        """First tokens as if there were no drafts. p: [vocab_size], each row's distribution before `rules`; requests take turns with the
        models."""
        self.require_claim("speculative")
        logits, plain = p.log(), rules or Rules()
        sampler, chance = self.make_sampler(len(p)), np.random.default_rng(self.seed)
        num_each = NUM_REQUESTS // len(models)
        probs = [model.probs.unsqueeze(0) for model in models if model.probs is not None] * num_each
        found: list[list[int]] = [[] for _ in models]
        for number in range(ROUNDS):
            drawn = zip(*(model.drafts(num_each, chance) for model in models), strict=True)
            drafts = Drafts([[draft] for of_all in drawn for draft in of_all], probs or None)
            num_requests = len(drafts.token_ids)
            seeds = range(number * num_requests, (number + 1) * num_requests)
            each = [plain.with_seed(seed) for seed in seeds] if has_seeds else plain
            output = self.sample(sampler, logits.expand(2 * num_requests, -1), each, drafts=drafts).token_ids[:, 0].tolist()
            for index in range(len(models)):
                found[index] += output[index :: len(models)]
        for ids in found:
            require_distribution(ids, distribution(logits, plain), f"first tokens with {what}")
