"""Cases of the `sampler` slot: what a seed promises, and what rows without one must not share."""

from __future__ import annotations

import numpy as np
import torch

from slotwise.testing.sampler_arguments import Drafts
from slotwise.testing.sampler_kit import GREEDY, VOCAB_SIZE, SamplerKit
from slotwise.testing.sampler_truth import Rules, distribution, require_distribution
from slotwise.testing.verdicts import require

NUM_POSITIONS = 3000
SEEDED = Rules(temperature=1.2, top_p=0.97, seed=42)


class SamplerSeedCases(SamplerKit):
    """One promise each."""

    def test_a_seed_and_a_position_give_one_id(self) -> None:
        """Whoever is beside it, in whatever row, whatever was drawn before, by whatever engine seed."""
        self.require_claim("per_request_seeds")
        mine = self.random_logits(1, seed=40)
        (alone,) = self.ids(self.make_sampler(), mine, SEEDED, positions=[9])
        others = self.random_logits(5, seed=41)
        sampler = self.make_sampler(seed=77)
        for company in (Rules(), Rules(seed=7), GREEDY, Rules(seed=42, top_k=2)):
            for row in (0, 2, 5):
                logits = torch.cat((others[:row], mine, others[row:]))
                rules = [company] * row + [SEEDED] + [company] * (5 - row)
                found = self.ids(sampler, logits, rules, positions=[3] * row + [9] + [4] * (5 - row))
                require(found[row] == alone, f"seed 42 at position 9 gave {alone} alone, but {found[row]} in row {row} beside {company}")

    def test_positions_and_seeds_draw_apart(self) -> None:
        """Over positions of one seed, and over seeds at one position, ids follow the distribution."""
        self.require_claim("per_request_seeds")
        logits = self.random_logits(1, seed=42)[0]
        expected = distribution(logits, Rules())
        rows = logits.expand(NUM_POSITIONS, -1)
        by_position = self.ids(self.make_sampler(), rows, Rules(seed=5), positions=range(NUM_POSITIONS))
        require_distribution(by_position, expected, f"one seed over {NUM_POSITIONS} positions")
        by_seed = self.ids(self.make_sampler(), rows, [Rules(seed=seed) for seed in range(NUM_POSITIONS)])
        require_distribution(by_seed, expected, f"{NUM_POSITIONS} seeds at one position")
        follows = torch.tensor(by_position[1:]) == torch.tensor(by_position[:-1])
        chance = float((expected**2).sum())
        require(
            abs(float(follows.double().mean()) - chance) < 6 * (chance / NUM_POSITIONS) ** 0.5 + 0.01,
            "ids of neighbouring positions hang together",
        )

    def test_seeds_of_64_bits_are_told_apart(self) -> None:
        """Negative ones and those above 2^63 included."""
        self.require_claim("per_request_seeds")
        seeds = [0, 1, 2**31, 2**32, 2**63, 2**64 - 1, -1, -(2**63), 2**33, 3]
        logits = self.random_logits(1, 1000, seed=43, spread=0.1)
        found = {seed: self.ids(self.make_sampler(1000), logits, Rules(seed=seed))[0] for seed in seeds}
        require(len(set(found.values())) >= 7, f"seeds {seeds} gave only the ids {sorted(set(found.values()))}")

    def test_rows_without_a_seed_draw_apart(self) -> None:
        """Equal rows of one step, and the same row in later steps, are independent draws."""
        logits = self.random_logits(1, 500, seed=44, spread=0.1)
        sampler = self.make_sampler(500)
        steps = [self.ids(sampler, logits.expand(40, -1), Rules()) for _ in range(5)]
        for number, ids in enumerate(steps):
            require(len(set(ids)) > 25, f"step {number}: 40 equal rows drew only {len(set(ids))} different ids of 500")
        require(len({tuple(ids) for ids in steps}) == 5, "two steps drew the same ids for 40 rows")

    def test_equal_engine_seeds_give_equal_draws(self) -> None:
        """Two samplers of one `SamplerSetup.seed` draw alike, those of others do not."""
        logits = self.random_logits(40, 500, seed=45, spread=0.1)
        first, same, other = (self.ids(self.make_sampler(500, seed=seed), logits, Rules()) for seed in (5, 5, 6))
        require(first == same, "two samplers of one seed drew different ids")
        require(first != other, "two samplers of different seeds drew the same ids")

    def test_sampled_drafts_depend_on_nobody_else(self) -> None:
        """A request with a seed and sampled drafts gets the same tokens in any place, beside any others."""
        self.require_claim("per_request_seeds")
        self.require_claim("speculative")
        mine, others = self.random_logits(3, seed=47), self.random_logits(8, seed=48)
        q = torch.full((4, VOCAB_SIZE), 1 / VOCAB_SIZE)
        ratio = VOCAB_SIZE * distribution(mine[0], SEEDED)
        doubtful = np.argsort(abs(ratio - 0.5), kind="stable")[:3].tolist()  # kept about every second time
        for drafts in ([first, doubtful[0]] for first in doubtful):
            alone, *_ = self.sample(
                self.make_sampler(), mine, SEEDED, positions=[5, 6, 7], drafts=Drafts([drafts], [q[:2]])
            ).token_ids.tolist()
            sampler = self.make_sampler(seed=9)
            for company in (Rules(), Rules(seed=7), GREEDY):
                for before in (0, 1, 2):
                    logits = torch.cat((others[: 2 * before], mine, others[2 * before : 4]))
                    both = Drafts([*[[3]] * before, drafts, *[[3]] * (2 - before)], [*[q[3:]] * before, q[:2], *[q[3:]] * (2 - before)])
                    positions = [1, 2] * before + [5, 6, 7] + [1, 2] * (2 - before)
                    rules = [company] * before + [SEEDED] + [company] * (2 - before)
                    found = self.sample(sampler, logits, rules, positions=positions, drafts=both).token_ids[before].tolist()
                    require(found == alone, f"drafts {drafts} gave {alone} alone, but {found} in place {before} beside {company}")

    def test_drafts_do_not_change_what_a_seed_gives(self) -> None:
        """Certain drafts: the tokens are those of plain steps at their positions."""
        self.require_claim("per_request_seeds")
        self.require_claim("speculative")
        logits = self.random_logits(4, seed=46)
        plain = self.ids(self.make_sampler(), logits, SEEDED, positions=[3, 4, 5, 6])
        for drafts in (plain[:3], [plain[0], plain[1], (plain[2] + 1) % VOCAB_SIZE], [(plain[0] + 1) % VOCAB_SIZE] * 3):
            num_right = next((place for place, pair in enumerate(zip(drafts, plain, strict=False)) if pair[0] != pair[1]), 3)
            output = self.sample(self.make_sampler(), logits, SEEDED, positions=[3, 4, 5, 6], drafts=Drafts([drafts]))
            found = [token_id for token_id in output.token_ids[0].tolist() if token_id >= 0]
            require(found == plain[: num_right + 1], f"drafts {drafts} gave {found}, plain steps give {plain[: num_right + 1]}")
