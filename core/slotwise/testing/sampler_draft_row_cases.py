"""Cases of the `sampler` slot: which rows of the logits belong to which draft; everything about drafts that is not a matter of chance."""

from __future__ import annotations

import torch

from slotwise.testing.sampler_arguments import Drafts, Edits
from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, SamplerKit, require_tensor
from slotwise.testing.sampler_truth import Rules
from slotwise.testing.verdicts import require


class SamplerDraftRowCases(SamplerKit):
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

    def test_greedy_drafts_need_no_probabilities(self) -> None:
        """Kept while they are the argmax, whatever `draft_probs` says of them."""
        self.require_claim("speculative")
        logits = self.random_logits(3, seed=58)
        best = logits.argmax(dim=1).tolist()
        q = torch.zeros(2, VOCAB_SIZE)
        q[1] = 1 / VOCAB_SIZE
        found = self.sample(self.make_sampler(), logits, GREEDY, drafts=Drafts([best[:2]], [q])).token_ids.tolist()
        require(found == [best], f"greedy drafts {best[:2]} with probabilities give {best}, not {found}")

    def test_without_drafts_verification_is_plain_sampling(self) -> None:
        """Requests whose number of drafts is 0 get what they get without `spec_decode`."""
        self.require_claim("speculative")
        logits = self.random_logits(3, seed=51)
        rules = [GREEDY, Rules(seed=1), Rules(seed=2, top_k=4)] if self.capabilities.per_request_seeds else [GREEDY] * 3
        plain = self.ids(self.make_sampler(), logits, rules)
        found = self.sample(self.make_sampler(), logits, rules, drafts=Drafts([[], [], []])).token_ids[:, 0].tolist()
        require(found == plain, f"no drafts: {found}, plain: {plain}")

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

    def test_edits_after_temperature_see_every_row(self) -> None:
        """Those of drafts included, and what they forbid is not kept."""
        self.require_claim("speculative")
        best, second = [3, 5, 7, 9, 11], 6
        logits = torch.full((5, VOCAB_SIZE), -1000.0)
        for row, token_id in enumerate(best):
            logits[row, token_id] = 0.0
        logits[1, second] = -0.1

        def forbid(values: torch.Tensor) -> None:
            values[1, second] = -torch.inf

        q = torch.full((2, VOCAB_SIZE), 1 / VOCAB_SIZE)
        for probs in (None, [q, q[:1]]):
            edits = Edits(after=forbid)
            drafts = Drafts([[best[0], second], [best[3]]], probs)
            for seed in range(10):
                found = self.sample(self.make_sampler(seed=seed), logits, Rules(), edits=edits, drafts=drafts).token_ids.tolist()
                require(found == [[*best[:2], -1], [*best[3:], -1]], f"a draft that is forbidden after temperature was kept: {found}")
            require(edits.seen[-1][1:] == (torch.float32, (5, VOCAB_SIZE)), f"edits after temperature saw {edits.seen[-1][1:]}, not 5 rows")

    def test_output_of_drafts_has_the_promised_form(self) -> None:
        """As wide as the most drafts and one more; logprobs and ranks for every row of the logits."""
        self.require_claim("speculative")
        for counts in ((2, 0, 1), (0, 0, 0), (1, 1, 1)):
            num_rows = sum(counts) + 3
            drafts = Drafts([[5] * count for count in counts])
            for rules in (GREEDY, Rules()):
                output = self.sample(self.make_sampler(), self.random_logits(num_rows), rules, num_logprobs=1, drafts=drafts)
                require_tensor(output.token_ids, (3, 1 + max(counts)), torch.int64, self.device_name, "token_ids")
                require(output.logprobs is not None, "num_logprobs 1 gave no logprobs")
                assert output.logprobs is not None
                require_tensor(output.logprobs.token_ids, (num_rows, 2), torch.int64, self.device_name, "logprobs.token_ids")
                require_tensor(output.logprobs.ranks, (num_rows,), torch.int64, self.device_name, "logprobs.ranks")
