"""Writes the table of docs/attention.md, who serves what, from the records of the installed backends; `--check` fails if it is stale.

Imports no implementation: records say what is claimed, and the conformance kit holds them to it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from slotwise.interfaces.attention import AttentionCapabilities
from slotwise.plugin.registry import ComponentRegistry
from slotwise.testing.attention_report import claim_in_words

PAGE = Path(__file__).resolve().parent / "attention.md"
BEGIN, END = "<!-- backends: written by docs/generate_attention_table.py (`make docs-contracts`) from their records -->\n", "<!-- end -->\n"
ORDER = ("reference", "torch_sdpa", "cpu", "flex", "triton", "flash_attention", "flashinfer")
ROWS: dict[str, Callable[[AttentionCapabilities], str]] = {
    # In the interpreter Triton's record offers the CPU too; the table tells of the usual case.
    "devices": lambda claims: "cuda" if claims.devices == ("cuda", "cpu") else ", ".join(claims.devices),
    "preference of `auto`": lambda claims: ", ".join(f"{device} {rank}" for device, rank in claims.preference.items()) or "never",
    "dtypes": lambda claims: ", ".join(claims.dtypes),
    "cache in other dtypes": lambda claims: claim_in_words(claims, "kv_dtypes"),
    "head dimensions": lambda claims: claim_in_words(claims, "head_dims"),
    "block sizes": lambda claims: claim_in_words(claims, "block_sizes"),
    "layouts": lambda claims: claim_in_words(claims, "kv_layouts"),
    "sliding window": lambda claims: claim_in_words(claims, "sliding_window"),
    "chunked local": lambda claims: claim_in_words(claims, "chunked_local"),
    "encoder, cross": lambda claims: claim_in_words(claims, "encoder"),
    "soft cap": lambda claims: claim_in_words(claims, "logits_soft_cap"),
    "ALiBi": lambda claims: claim_in_words(claims, "alibi"),
    "sinks": lambda claims: claim_in_words(claims, "sinks"),
    "not causal": lambda claims: claim_in_words(claims, "non_causal"),
    "custom masks": lambda claims: claim_in_words(claims, "custom_mask"),
    "MLA": lambda claims: claim_in_words(claims, "mla"),
    "LSE": lambda claims: claim_in_words(claims, "lse"),
    "cascade": lambda claims: claim_in_words(claims, "cascade"),
    "context parallel": lambda claims: claim_in_words(claims, "context_parallel"),
    "batch-invariant": lambda claims: claim_in_words(claims, "batch_invariant"),
    "graphs": lambda claims: claim_in_words(claims, "graph_support").replace("_", " "),
    "not together": lambda claims: "; ".join(" with ".join(names) for names in claims.not_together),
}


def table() -> Iterator[str]:
    """Line by line; one column per built-in backend."""
    claims = {
        state.name: state.component.capabilities
        for state in ComponentRegistry().load_slot("attention")
        if state.component is not None and state.name in ORDER
    }
    yield f"| | {' | '.join(f'`{name}`' for name in ORDER)} |\n"
    yield f"|---|{'---|' * len(ORDER)}\n"
    for title, words in ROWS.items():
        yield f"| {title} | {' | '.join(words(claims[name]).replace('float', 'f') or '-' for name in ORDER)} |\n"


def written(page: str) -> str:
    """The page with its table as it should be now."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + "".join(table()) + END, page, flags=re.DOTALL)


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table is stale")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().check:
        if written(page) != page:
            print("docs/attention.md is stale: run `make docs-contracts`")
        return int(written(page) != page)
    PAGE.write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
