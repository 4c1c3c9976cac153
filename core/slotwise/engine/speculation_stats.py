"""How many drafts were accepted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SpeculationStats:
    """Counts since the engine started."""

    num_verifications: int = 0
    """Request steps that verified drafts; each gave one token more than it accepted drafts."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """How often the first, second, ... draft was accepted."""

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """One request verified `num_drafts` and kept the first `num_accepted` of them."""
        self.num_verifications += 1
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        per_position = self.accepted_per_position
        per_position.extend([0] * (num_drafts - len(per_position)))
        for position in range(num_accepted):
            per_position[position] += 1

    @property
    def acceptance_rate(self) -> float:
        """Accepted drafts per draft; 0 before there were any."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_tokens_per_verification(self) -> float:
        """Tokens that a step with drafts gives a request, 1 without any luck; 0 before there were any."""
        return 1 + self.num_accepted_tokens / self.num_verifications if self.num_verifications else 0.0
