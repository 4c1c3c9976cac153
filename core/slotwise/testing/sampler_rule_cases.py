"""Cases of the `sampler` slot: which ids may come, how often, and in which order the steps are taken."""

from __future__ import annotations

import math

import numpy as np
import torch

from slotwise.interfaces.sampler import SampleRequest
from slotwise.testing.sampler_arguments import Edits
from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, SamplerKit, require_tensor
from slotwise.testing.sampler_truth import MOST_DEVIATIONS, Rules, distribution, groups_by_rank, require_distribution
from slotwise.testing.verdicts import require

LARGE_VOCAB_SIZE = 50_000
NUM_MIXED_STEPS = 8
WORKED = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()


class SamplerRuleCases(SamplerKit):
    """One rule each."""

    def test_greedy_rows_take_the_argmax(self) -> None:
        """Temperature 0: the most likely id, whatever the other parameters."""
        for vocab_size in (1, 7, VOCAB_SIZE, 1000, LARGE_VOCAB_SIZE):
            logits = self.random_logits(9, vocab_size)
            found = self.ids(self.make_sampler(vocab_size), logits, GREEDY)
            require(found == logits.argmax(dim=1).tolist(), f"vocabulary of {vocab_size}: greedy rows gave {found}")

    def test_draws_follow_the_softmax(self) -> None:
        """Temperature 1, nothing cut off."""
        self._require(self.random_logits(1)[0], Rules(), "plain sampling")

    def test_draws_follow_the_softmax_of_a_large_vocabulary(self) -> None:
        """50,000 ids, most of them rare, judged in groups; and with everything but a few of them cut off."""
        logits = self.random_logits(1, LARGE_VOCAB_SIZE, spread=3.0)[0]
        expected = distribution(logits, Rules())
        drawn = self.draws(logits, Rules(), 2000)
        for groups, what in ((groups_by_rank(expected, 40), "rank"), (np.arange(LARGE_VOCAB_SIZE) // 1000, "place")):
            of_group = np.bincount(groups, weights=expected).astype(np.float64)
            require_distribution(groups[drawn], of_group, f"a vocabulary of {LARGE_VOCAB_SIZE}, by {what}")
        for rules in (Rules(top_k=50, top_p=0.9), Rules(min_p=0.05, top_p=0.5)):
            require_distribution(
                self.draws(logits, rules, 400), distribution(logits, rules), f"a vocabulary of {LARGE_VOCAB_SIZE}, {rules}"
            )

    def test_temperature_divides_the_logits(self) -> None:
        """Temperatures 0.5, 1.7, and one that makes all ids equally likely."""
        for temperature in (0.5, 1.7, 1e6):
            self._require(self.random_logits(1, seed=1)[0], Rules(temperature=temperature), f"temperature {temperature}")

    def test_top_k_keeps_the_most_likely(self) -> None:
        """top_k of 1, 3 and the whole vocabulary."""
        for top_k in (1, 3, VOCAB_SIZE):
            self._require(self.random_logits(1, seed=2)[0], Rules(top_k=top_k), f"top_k {top_k}")

    def test_ties_with_the_kth_stay(self) -> None:
        """top_k of 2 where three ids share the second place keeps them all."""
        self._require(torch.tensor([3.0, 2.0, 2.0, 2.0, 1.0]), Rules(top_k=2), "ties with the k-th")

    def test_top_p_keeps_the_smallest_sufficient_set(self) -> None:
        """The most likely ids whose mass reaches top_p, at least one."""
        for top_p in (0.0001, 0.3, 0.8, 0.95):
            self._require(self.random_logits(1, seed=3)[0], Rules(top_p=top_p), f"top_p {top_p}")

    def test_top_p_of_many_equal_ids(self) -> None:
        """Half of them, neither all nor one."""
        for vocab_size in (100, 1000):
            drawn = self.draws(torch.zeros(vocab_size), Rules(top_p=0.5), 2000)
            found, kept = len(np.unique(drawn)), vocab_size / 2
            missed = kept * math.exp(-len(drawn) / kept)  # ids of the set that never came, by chance
            fewest = kept - missed - MOST_DEVIATIONS * math.sqrt(missed) - 1
            require(fewest <= found <= kept + 1, f"top_p 0.5 of {vocab_size} equal ids drew {found} of them, not about {kept - missed:.0f}")

    def test_min_p_is_relative_to_the_best(self) -> None:
        """Ids below min_p times the best one's probability are dropped."""
        for min_p in (0.02, 0.3, 1.0):
            self._require(self.random_logits(1, seed=4)[0], Rules(min_p=min_p), f"min_p {min_p}")

    def test_top_k_comes_before_top_p(self) -> None:
        """top_p counts the mass of what top_k left: probabilities .4 .3 .2 .1, top_k 2, top_p 0.5 leave one id."""
        for rules in (Rules(top_k=2, top_p=0.5), Rules(top_k=1, top_p=0.8), Rules(top_k=3, top_p=0.01)):
            self._require(WORKED, rules, f"top_k {rules.top_k}, top_p {rules.top_p}")

    def test_temperature_comes_before_truncation(self) -> None:
        """Temperature changes what min_p and top_p cut off."""
        self._require(torch.tensor([3.0, 2.0, 1.0]), Rules(temperature=0.5, top_p=0.8), "temperature before top_p")
        self._require(torch.tensor([4.0, 2.0, 0.0]), Rules(temperature=2.0, min_p=0.2), "temperature before min_p")

    def test_rules_together(self) -> None:
        """Temperature, min_p, top_k and top_p at once."""
        for seed in range(3):
            rules = Rules(temperature=0.8, min_p=0.01, top_k=11, top_p=0.9)
            self._require(self.random_logits(1, seed=10 + seed)[0], rules, "all parameters together")

    def test_rows_have_their_own_rules(self) -> None:
        """One batch of rows with every combination on and off, greedy ones among them."""
        rules = [Rules(), Rules(top_k=1), GREEDY, Rules(top_k=5, top_p=0.5), Rules(temperature=0.3), Rules(min_p=0.5), Rules(top_p=0.7)]
        logits = self.random_logits(1, seed=5)
        sampler, num_each = self.make_sampler(), 400
        drawn: list[list[int]] = [[] for _ in rules]
        for _ in range(NUM_MIXED_STEPS):
            found = self.ids(sampler, logits.expand(len(rules) * num_each, -1), rules * num_each)
            for row in range(len(rules)):
                drawn[row] += found[row :: len(rules)]
        for each, of_one in zip(rules, drawn, strict=True):
            require_distribution(of_one, distribution(logits[0], each), f"a row with {each} beside others")

    def test_edits_come_before_the_argmax(self) -> None:
        """`before_argmax` is called once with float32, its result is what greedy rows and draws see."""
        logits = self.random_logits(6, seed=6).argsort(dim=1).to(torch.bfloat16)  # no two alike in any dtype
        best = logits.argmax(dim=1)

        def forbid(values: torch.Tensor) -> None:
            values.scatter_(1, best.to(values.device).unsqueeze(1), -torch.inf)

        for rules in (GREEDY, Rules(temperature=0.01), [GREEDY, Rules(temperature=0.01)] * 3):
            edits = Edits(before=forbid)
            found = self.ids(self.make_sampler(), logits, rules, edits=edits)
            expected = logits.float().scatter(1, best.unsqueeze(1), -torch.inf).argmax(dim=1).tolist()
            require(found == expected, f"with the best id forbidden by before_argmax the ids are {expected}, not {found}")
            calls = [call for call in edits.seen if call[0] == "before_argmax"]
            require(len(calls) == 1, f"before_argmax was called {len(calls)} times in one step")
            require(calls[0][1:] == (torch.float32, (6, VOCAB_SIZE)), f"before_argmax got {calls[0][1:]}, not all rows in float32")

    def test_edits_after_temperature_act_between_temperature_and_top_k(self) -> None:
        """`after_temperature` sees tempered logits, before top_k and top_p; greedy rows do not heed it."""
        logits = torch.tensor([2.0, 1.0, 0.0, -1.0])

        def lift(values: torch.Tensor) -> None:
            values[:, 3] += 5.0  # to the second place, but only after division by 0.5

        truth = logits / 0.5
        truth[3] += 5.0
        for rules in (Rules(temperature=0.5), Rules(temperature=0.5, top_k=2), Rules(temperature=0.5, top_p=0.95)):
            drawn = self.draws(logits, rules, edits=Edits(after=lift))
            expected = distribution(truth, Rules(top_k=rules.top_k, top_p=rules.top_p))
            require_distribution(drawn, expected, f"edits after temperature, {rules}")
        edits = Edits(after=_reverse)
        found = self.ids(self.make_sampler(4), logits.expand(3, -1), [GREEDY, Rules(temperature=0.1), GREEDY], edits=edits)
        require(found == [0, 3, 0], f"edits after temperature are for the random row alone: {found}, not [0, 3, 0]")
        calls = [call[1:] for call in edits.seen if call[0] == "after_temperature"]
        require(calls == [(torch.float32, (3, 4))], f"after_temperature got {calls}, not once all rows in float32")

    def test_metadata_is_not_changed(self) -> None:
        """The engine keeps it from step to step."""
        rules = [GREEDY, Rules(top_k=3, top_p=0.4, min_p=0.1, temperature=0.6, seed=5)]
        metadata = self.metadata(rules, VOCAB_SIZE, num_logprobs=2)
        kept = metadata.select(torch.arange(2, device=self.device_name))
        sampler = self.make_sampler()
        for step in range(3):
            logits = self.random_logits(2, seed=step).to(self.device_name)
            sampler.sample(SampleRequest(logits=logits, metadata=metadata, positions=[step, step]))
        for name in ("temperature", "top_k", "top_p", "min_p"):
            require(torch.equal(getattr(metadata, name), getattr(kept, name)), f"SamplingMetadata.{name} was changed")
        require(dict(metadata.seeds) == dict(kept.seeds), "SamplingMetadata.seeds was changed")

    def test_output_has_the_promised_form(self) -> None:
        """Shapes and dtypes of ids, logprobs and ranks, on the sampler's device."""
        for rules in (GREEDY, Rules(), [GREEDY, Rules(), Rules(top_k=2)]):
            output = self.sample(self.make_sampler(), self.random_logits(3), rules, num_logprobs=2)
            require_tensor(output.token_ids, (3, 1), torch.int64, self.device_name, "token_ids")
            require(output.logprobs is not None, "num_logprobs 2 gave no logprobs")
            assert output.logprobs is not None
            require_tensor(output.logprobs.token_ids, (3, 3), torch.int64, self.device_name, "logprobs.token_ids")
            require_tensor(output.logprobs.logprobs, (3, 3), torch.float32, self.device_name, "logprobs.logprobs")
            require_tensor(output.logprobs.ranks, (3,), torch.int64, self.device_name, "logprobs.ranks")

    def _require(self, logits: torch.Tensor, rules: Rules, what: str) -> None:
        require_distribution(self.draws(logits, rules), distribution(logits, rules), what)


def _reverse(values: torch.Tensor) -> None:
    values.neg_()
