"""Cases of the `sampler` slot: logprobs, in each mode that is claimed, and ranks."""

from __future__ import annotations

import itertools
import math

import torch

from slotwise.interfaces.sampler import SamplerOutput
from slotwise.testing.sampler_arguments import Drafts, Edits
from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, SamplerKit
from slotwise.testing.sampler_truth import Rules, distribution
from slotwise.testing.verdicts import require

TOLERANCE = 2e-4
"""Float32 sums over a small vocabulary, of values up to about 10; an order of magnitude above their rounding."""
RULES = [GREEDY, Rules(temperature=0.7, seed=1), Rules(temperature=1.4, top_k=6, top_p=0.8, min_p=0.01, seed=2)]


class SamplerLogprobCases(SamplerKit):
    """One rule each."""

    def test_logprobs_are_those_of_the_mode(self) -> None:
        """Raw or processed, normalised or not, greedy or random, with and without edits, float32 whatever the logits are."""
        for mode in self.capabilities.logprobs_modes:
            for dtype, edits in itertools.product((torch.float32, torch.bfloat16), (None, Edits(before=_lower))):
                logits = self.random_logits(3, seed=30).to(dtype)
                edited = logits.float().clone()
                if edits is not None:
                    _lower(edited)
                output = self.sample(self.make_sampler(logprobs_mode=mode), logits, RULES, num_logprobs=-1, edits=edits)
                for row, rules in enumerate(RULES):
                    self._require_row(output, row, _values(mode, logits[row], edited[row], rules), f"{mode} of {dtype} logits, {rules}")

    def test_processed_logprobs_hold_edits_after_temperature(self) -> None:
        """The processed modes tell what was drawn from, the raw ones do not."""
        rules = Rules(temperature=0.5, seed=3)
        logits = self.random_logits(2, seed=34)
        tempered = logits / rules.temperature
        _lower(tempered)
        for mode in self.capabilities.logprobs_modes:
            output = self.sample(self.make_sampler(logprobs_mode=mode), logits, rules, num_logprobs=-1, edits=Edits(after=_lower))
            for row in range(2):
                edited = tempered[row] * rules.temperature
                self._require_row(output, row, _values(mode, logits[row], edited, rules), f"{mode} with edits after temperature")

    def test_processed_logprobs_of_drafts_are_those_of_their_rows(self) -> None:
        """Each row of a request with drafts by its request's parameters."""
        self.require_claim("speculative")
        logits = self.random_logits(4, seed=35)
        rules, owners = [Rules(temperature=0.7, top_k=5, seed=1), Rules(temperature=1.4, seed=2)], (0, 0, 0, 1)
        for mode in self.capabilities.logprobs_modes:
            best = logits.argmax(dim=1).tolist()
            output = self.sample(self.make_sampler(logprobs_mode=mode), logits, rules, num_logprobs=-1, drafts=Drafts([best[:2], []]))
            num_tokens = int((output.token_ids[0] >= 0).sum())
            for row in (*range(num_tokens), 3):
                self._require_row(
                    output, row, _values(mode, logits[row], logits[row], rules[owners[row]]), f"{mode} of row {row} of drafts"
                )

    def test_columns_are_the_token_then_the_most_likely(self) -> None:
        """Column 0 is the sampled id; then as many as asked for, falling, with their values."""
        logits = self.random_logits(4, seed=31)
        for wanted in (0, 1, 5, -1):
            output = self.sample(self.make_sampler(), logits, Rules(temperature=1.5, seed=4), num_logprobs=wanted)
            require(output.logprobs is not None, f"num_logprobs {wanted} gave none")
            assert output.logprobs is not None
            ids, values = output.logprobs.token_ids.cpu(), output.logprobs.logprobs.cpu()
            columns = 1 + (VOCAB_SIZE if wanted == -1 else wanted)
            require(ids.shape == (4, columns), f"num_logprobs {wanted} gave {tuple(ids.shape)}, not (4, {columns})")
            require(ids[:, 0].tolist() == output.token_ids[:, 0].tolist(), "column 0 must be the sampled id")
            require(values.dtype == torch.float32, f"logprobs are {values.dtype}, not float32")
            likely = values[:, 1:]
            require(bool((likely[:, 1:] <= likely[:, :-1]).all()), "the most likely ids must come in falling order")
            best = logits.topk(columns - 1, dim=1).indices if wanted else ids[:, 1:]
            require(ids[:, 1:].tolist() == best.tolist(), f"num_logprobs {wanted} must give the most likely ids")

    def test_without_a_wish_there_are_none(self) -> None:
        """num_logprobs None."""
        require(self.sample(self.make_sampler(), self.random_logits(2), GREEDY).logprobs is None, "nobody asked for logprobs")

    def test_ranks_count_ids_that_are_at_least_as_likely(self) -> None:
        """1 = the most likely; ties push down."""
        logits = torch.tensor([[5.0, 5.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
        output = self.sample(self.make_sampler(4), logits, GREEDY, num_logprobs=0)
        assert output.logprobs is not None
        require(output.logprobs.ranks.tolist() == [2, 1], f"ranks are {output.logprobs.ranks.tolist()}, not 2 (a tie) and 1")
        sampler = self.make_sampler()
        many = self.random_logits(1, seed=32).expand(500, -1)
        drawn = self.sample(sampler, many, Rules(temperature=2.0), num_logprobs=0)
        assert drawn.logprobs is not None
        chosen = many.gather(1, drawn.token_ids[:, :1].cpu())
        expected = (many >= chosen).sum(dim=1)
        require(torch.equal(drawn.logprobs.ranks.cpu(), expected), "ranks of drawn ids are wrong")

    def test_rows_of_drafts_belong_to_their_tokens(self) -> None:
        """With drafts, row i of a request's rows describes its i-th token."""
        self.require_claim("speculative")
        logits = self.random_logits(6, seed=33)
        best = logits.argmax(dim=1).tolist()
        drafts = Drafts([[best[0], best[1]], [], [(best[4] + 1) % VOCAB_SIZE]])
        output = self.sample(self.make_sampler(), logits, GREEDY, num_logprobs=2, drafts=drafts)
        assert output.logprobs is not None
        ids = output.logprobs.token_ids.cpu()
        require(ids.shape[0] == 6, f"logprobs have {ids.shape[0]} rows, but the logits have 6")
        for row in (0, 1, 2, 3, 4):
            require(ids[row, 0].item() == best[row], f"row {row} of the logits gave id {best[row]}, its logprobs say {ids[row, 0].item()}")

    def _require_row(self, output: SamplerOutput, row: int, wanted: torch.Tensor, what: str) -> None:
        """The values of the whole vocabulary. wanted: [vocab_size] float64."""
        require(output.logprobs is not None, f"{what}: num_logprobs -1 gave none")
        assert output.logprobs is not None
        found = torch.full((VOCAB_SIZE,), math.nan, dtype=torch.float64)
        found[output.logprobs.token_ids[row].cpu()] = output.logprobs.logprobs[row].double().cpu()
        same_infinity = torch.isinf(wanted) & (found == wanted)
        error = torch.where(same_infinity, 0.0, (found - wanted).abs())
        require(bool((error < TOLERANCE).all()), f"{what}: off by {float(error.nan_to_num(math.inf).max()):.2g}")


def _lower(values: torch.Tensor) -> None:
    """An edit that cannot change much of the order, and shows."""
    values[:, 4] -= 3.0


def _values(mode: str, raw: torch.Tensor, edited: torch.Tensor, rules: Rules) -> torch.Tensor:
    """[vocab_size] float64 that a mode means."""
    if mode.startswith("raw"):
        values = raw.double()
    elif rules.temperature == 0:
        values = edited.double()
    else:
        kept = torch.from_numpy(distribution(edited, rules)) > 0
        values = torch.where(kept, edited.double() / rules.temperature, -math.inf)
    return values.log_softmax(dim=0) if mode.endswith("logprobs") else values
