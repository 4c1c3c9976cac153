"""Cases of the `sampler` slot: rows that are hardly usable, or not at all, and what they may do to others."""

from __future__ import annotations

import itertools
import math

import torch

from slotwise.testing.sampler_arguments import Drafts, Edits
from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, SamplerKit
from slotwise.testing.sampler_truth import Rules, distribution, require_distribution
from slotwise.testing.verdicts import require

RANDOM = Rules(temperature=0.9, top_k=20, top_p=0.95, min_p=0.001, seed=3)
ALL_RULES = (GREEDY, Rules(seed=3), RANDOM)
BAD_ROWS = {
    "all NaN": torch.full((VOCAB_SIZE,), math.nan),
    "one NaN": torch.cat((torch.tensor([math.nan]), torch.zeros(VOCAB_SIZE - 1))),
    "one +inf": torch.cat((torch.zeros(VOCAB_SIZE - 1), torch.tensor([math.inf]))),
    "all -inf": torch.full((VOCAB_SIZE,), -math.inf),
}


class SamplerEdgeCases(SamplerKit):
    """One kind of row each."""

    def test_unusable_rows_give_no_id_and_harm_nobody(self) -> None:
        """NaN, +inf, or nothing but -inf: -1 in that row, the others as without it, logprobs or not."""
        logits = self.random_logits(4, seed=20)
        for rules in ALL_RULES:
            healthy = self.ids(self.make_sampler(), logits, rules)
            for name, bad in BAD_ROWS.items():
                spoiled = logits.clone()
                spoiled[2] = bad
                for num_logprobs in (None, 2):
                    found = self.ids(self.make_sampler(), spoiled, rules, num_logprobs=num_logprobs)
                    require(found[2] == -1, f"a row of {name} gave id {found[2]} under {rules}, not -1")
                    others = [(found[row], healthy[row]) for row in (0, 1, 3)]
                    is_same = all(one == other for one, other in others) if self._is_repeatable(rules) else min(others)[0] >= 0
                    require(is_same, f"a row of {name} changed other rows under {rules}")

    def test_rows_that_edits_leave_empty_give_no_id(self) -> None:
        """An edit that forbids every id makes the row unusable, and no other."""

        def forbid(values: torch.Tensor) -> None:
            values[1] = -torch.inf

        for rules in ALL_RULES:
            found = self.ids(self.make_sampler(), self.random_logits(3), rules, edits=Edits(before=forbid))
            require(found[1] == -1, f"a row without an allowed id gave {found[1]} under {rules}")
            require(min(found[0], found[2]) >= 0, f"an empty row took the id of another under {rules}")

    def test_one_id_left_is_taken(self) -> None:
        """All -inf but one, at either end of the vocabulary."""
        for place in (0, VOCAB_SIZE - 1):
            logits = torch.full((3, VOCAB_SIZE), -math.inf)
            logits[:, place] = -5.0
            for rules in ALL_RULES:
                found = self.ids(self.make_sampler(), logits, rules)
                require(found == [place] * 3, f"only id {place} is possible, the rows gave {found} under {rules}")

    def test_forbidden_ids_never_come(self) -> None:
        """-inf has probability 0, whatever the parameters."""
        logits = self.random_logits(1, seed=21)[0]
        logits[::2] = -math.inf
        for rules in (Rules(temperature=2.0), Rules(top_k=30), Rules(top_p=0.999)):
            require_distribution(self.draws(logits, rules), distribution(logits, rules), f"half of the ids at -inf, {rules}")

    def test_tiny_temperatures_take_the_best(self) -> None:
        """1e-4 and 1e-3, in every dtype, also for neighbouring values and large ones."""
        for values in ([10.0, 11.0, 2.0, -3.0], [11.0, 11.0005, 0.0, 0.0], [0.0, 60000.0, 59000.0, -60000.0]):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                logits = torch.tensor(values).to(dtype)
                if (logits[0] == logits[1]).item():
                    continue
                for temperature in (1e-4, 1e-3) if values[1] - values[0] >= 1 else (2e-5,):
                    found = self.ids(self.make_sampler(4), logits.expand(64, -1), Rules(temperature=temperature))
                    require(set(found) == {1}, f"temperature {temperature} of {values} in {dtype} gave ids {set(found)}, not 1")

    def test_half_precision_logits_are_taken(self) -> None:
        """bfloat16 and float16 logits, sampled in float32."""
        for dtype in (torch.bfloat16, torch.float16):
            logits = self.random_logits(1, seed=22)[0].to(dtype)
            rules = Rules(temperature=0.8, top_p=0.9)
            require_distribution(self.draws(logits, rules), distribution(logits.float(), rules), f"{dtype} logits")

    def test_parameters_beyond_the_vocabulary_are_off(self) -> None:
        """top_k of the vocabulary's size, a vocabulary of one id."""
        require(self.ids(self.make_sampler(1), torch.zeros(2, 1), Rules(top_k=1, top_p=0.1)) == [0, 0], "one id is all there is")
        logits = self.random_logits(1)[0]
        require_distribution(self.draws(logits, Rules(top_k=VOCAB_SIZE)), distribution(logits, Rules()), "top_k of the whole vocabulary")
        mixed = self.ids(self.make_sampler(), logits.expand(2000, -1), [Rules(top_k=VOCAB_SIZE), Rules(top_k=2)] * 1000)
        require_distribution(mixed[::2], distribution(logits, Rules()), "top_k of the whole vocabulary beside top_k 2")

    def test_large_and_small_values_do_not_overflow(self) -> None:
        """Logits of 1e30, differences of 1e38, and of 1e-30."""
        for values in ([1e30, 1e30, -1e30], [3e38, -3e38, -3e38], [1e-30, 2e-30, 0.0]):
            logits = torch.tensor(values)
            found = self.draws(logits, Rules(temperature=1.5), 4096)
            require(found.min() >= 0, f"logits {values} gave no id")
            if values[0] == 3e38:
                require(set(found.tolist()) == {0}, f"logits {values} gave ids {set(found.tolist())}, not 0 alone")

    def test_unusable_rows_among_drafts(self) -> None:
        """A row that is needed and unusable ends its request with -1; one behind the end does not matter."""
        self.require_claim("speculative")
        best = [3, 5, 7]
        logits = torch.full((6, VOCAB_SIZE), -1000.0)  # so that random rows have no choice either
        for row, token_id in enumerate((*best, *best)):
            logits[row, token_id] = 9.0
        cases = ((1, [3, 5], [-1]), (2, [3, 1], [3, 5, -1]), (2, [3, 5], [-1]), (0, [3, 5], [-1]))
        for (bad_row, drafts, expected), rules, name in itertools.product(cases, (GREEDY, Rules()), BAD_ROWS):
            spoiled = logits.clone()
            spoiled[bad_row] = BAD_ROWS[name]
            for has_probs in (False, True):
                q = torch.full((2, VOCAB_SIZE), 1 / VOCAB_SIZE)
                both = Drafts([drafts, [3, 5]], [q, q] if has_probs else None)
                found = self.sample(self.make_sampler(), spoiled, rules, drafts=both).token_ids.tolist()
                what = f"row {bad_row} of {name}, drafts {drafts} under {rules}"
                require(found[0][: len(expected)] == expected, f"{what}: {found[0]}, expected {expected}")
                require(found[1] == best, f"{what}: another request got {found[1]}, not {best}")

    def _is_repeatable(self, rules: Rules) -> bool:
        """Whether another call gives the same ids, whoever is beside them."""
        return rules == GREEDY or self.capabilities.per_request_seeds
