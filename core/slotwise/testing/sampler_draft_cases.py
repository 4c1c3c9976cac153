"""Cases of the `sampler` slot: verification of drafts keeps greedy tokens and distributions."""

from __future__ import annotations

import numpy as np
import torch

from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, Drafts, Edits, SamplerKit
from slotwise.testing.sampler_truth import Rules, distribution, require_distribution
from slotwise.testing.verdicts import require

NUM_REQUESTS = 1000
ROUNDS = 20
P = torch.tensor([0.6, 0.3, 0.1])
Q = torch.tensor([0.3, 0.4, 0.3])


class SamplerDraftCases(SamplerKit):
    """One rule each. Nothing is examined of a sampler that does not claim `speculative`."""

    def test_greedy_drafts_are_kept_while_they_are_the_argmax(self) -> None:
        """Any number of drafts per request, none included; then the argmax; then -1."""
        self.require_claim("speculative")
        drafts, expected = [], []
        counts = (3, 0, 1, 2, 3)
        logits = self.random_logits(sum(counts) + len(counts), seed=50)
        best, first = logits.argmax(dim=1).tolist(), 0
        for number, count in enumerate(counts):
            of_one = best[first : first + count]
            wrong = number % 3  # which draft is wrong, if there is such a one
            if wrong < count:
                of_one = [*of_one[:wrong], (of_one[wrong] + 1) % VOCAB_SIZE, *of_one[wrong + 1 :]]
            kept = min(wrong, count)
            drafts.append(of_one)
            expected.append([*best[first : first + kept + 1], *[-1] * (3 - kept)])
            first += count + 1
        found = self.sample(self.make_sampler(), logits, GREEDY, drafts=Drafts(drafts)).token_ids.tolist()
        require(found == expected, f"drafts {drafts} with argmaxes {best} give {expected}, not {found}")

    def test_without_drafts_verification_is_plain_sampling(self) -> None:
        """Requests whose number of drafts is 0 get what they get without `spec_decode`."""
        self.require_claim("speculative")
        logits = self.random_logits(3, seed=51)
        rules = [GREEDY, Rules(seed=1), Rules(seed=2, top_k=4)] if self.capabilities.per_request_seeds else [GREEDY] * 3
        plain = self.ids(self.make_sampler(), logits, rules)
        found = self.sample(self.make_sampler(), logits, rules, drafts=Drafts([[], [], []])).token_ids[:, 0].tolist()
        require(found == plain, f"no drafts: {found}, plain: {plain}")

    def test_certain_drafts_keep_the_distribution(self) -> None:
        """A draft without probabilities is kept with its probability, else replaced by the rest: p = .6 .3 .1, draft 0."""
        self.require_claim("speculative")
        for draft in range(3):
            self._require_first_tokens(P, Rules(), lambda draft=draft: (draft, None), f"certain draft {draft}")

    def test_sampled_drafts_keep_the_distribution(self) -> None:
        """A draft drawn from q is kept with min(1, p / q), else one comes from max(p - q, 0)."""
        self.require_claim("speculative")
        chance = np.random.default_rng(1)
        self._require_first_tokens(
            P, Rules(), lambda: (int(chance.choice(3, p=Q.double().numpy() / Q.double().sum().item())), Q), "sampled drafts"
        )

    def test_drafts_of_a_wrong_model_keep_the_distribution(self) -> None:
        """q far from p, and q that gives nothing to ids that p likes."""
        self.require_claim("speculative")
        chance = np.random.default_rng(2)
        logits = self.random_logits(1, 12, seed=52)[0]
        for q in (torch.tensor([0.9, *[0.1 / 11] * 11]), torch.tensor([0.0, 0.0, *[0.1] * 10])):
            weights = q.double().numpy() / q.double().sum().item()
            self._require_first_tokens(
                logits.softmax(0), Rules(), lambda w=weights, q=q: (int(chance.choice(12, p=w)), q), "a draft model far off"
            )

    def test_truncation_holds_for_drafts(self) -> None:
        """p is the distribution after temperature, top_k and top_p; drafts outside of it are never kept."""
        self.require_claim("speculative")
        rules = Rules(temperature=0.7, top_k=5, top_p=0.9)
        logits = self.random_logits(1, 12, seed=53)[0]
        chance = np.random.default_rng(3)
        q = torch.full((12,), 1 / 12)
        self._require_first_tokens(logits.softmax(0), rules, lambda: (int(chance.integers(12)), q), "uniform drafts under truncation")

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

    def test_edits_see_every_row(self) -> None:
        """Edits are given all rows of the logits, those of drafts included, and what they forbid is not kept."""
        self.require_claim("speculative")
        logits = self.random_logits(5, seed=55)
        best = logits.argmax(dim=1).tolist()

        def forbid(values: torch.Tensor) -> None:
            values[1, best[1]] = -torch.inf

        edits = Edits(before=forbid)
        found = self.sample(self.make_sampler(), logits, GREEDY, edits=edits, drafts=Drafts([[best[0], best[1]], [best[3]]])).token_ids
        second = logits[1].clone()
        second[best[1]] = -torch.inf
        expected = [[best[0], int(second.argmax()), -1], [best[3], best[4], -1]]
        require(found.tolist() == expected, f"with a draft forbidden by an edit {expected} must come, not {found.tolist()}")
        require(edits.seen[0][2] == (5, VOCAB_SIZE), f"edits saw {edits.seen[0][2]}, not all 5 rows")

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

    def _require_first_tokens(self, p: torch.Tensor, rules: Rules, draw_draft: object, what: str) -> None:
        assert callable(draw_draft)
        logits = p.log()
        sampler, found = self.make_sampler(len(p)), []
        for _ in range(ROUNDS):
            drawn = [draw_draft() for _ in range(NUM_REQUESTS)]
            probs = None if drawn[0][1] is None else [q[None] for _, q in drawn]
            drafts = Drafts([[draft] for draft, _ in drawn], probs)
            output = self.sample(sampler, logits.expand(2 * NUM_REQUESTS, -1), rules, drafts=drafts)
            found += output.token_ids[:, 0].tolist()
        require_distribution(found, distribution(logits, rules), f"first tokens with {what}")
