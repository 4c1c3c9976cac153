"""`python tests/gpu/write_report.py BUILD_DIR DOCS_DIR`: what `make gpu-check` found on this card, as docs/gpu/<card>.md."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import torch

PACKAGES = ("torch", "triton", "flashinfer-python", "flash-attn", "flash-attn-4", "transformers")
CASE = re.compile(r"\[(?P<backend>[a-z0-9_]+)-(?P<case>[a-z0-9_]+)\]")


def main(build: Path, docs: Path) -> Path:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    report = docs / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.md"
    sections = [f"# {name}\n", _versions(), _conformance(build / "tests.xml"), _times(build / "attention.json")]
    docs.mkdir(parents=True, exist_ok=True)
    report.write_text("\n".join(sections), encoding="utf-8")
    return report


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    return f"{time.strftime('%Y-%m-%d')}, {', '.join(found)}. Written by `make gpu-check`.\n"


def _conformance(path: Path) -> str:
    counts: dict[str, Counter[str]] = {}
    failures = []
    for test in ElementTree.parse(path).iter("testcase"):
        title = test.get("name", "")
        match = CASE.search(title)
        backend = match["backend"] if match else title
        failed = test.find("failure") if test.find("failure") is not None else test.find("error")
        outcome = "failed" if failed is not None else "skipped" if test.find("skipped") is not None else "passed"
        counts.setdefault(backend, Counter())[outcome] += 1
        if failed is not None:
            failures.append(f"- `{title}`: {(failed.get('message') or '').splitlines()[0][:300]}")
    rows = [f"| {name} | {c['passed']} | {c['failed']} | {c['skipped']} |" for name, c in sorted(counts.items())]
    table = ["## Tests", "", "| what | passed | failed | not claimed or not here |", "|---|---|---|---|", *rows, ""]
    return "\n".join([*table, *(["### Failures", "", *failures, ""] if failures else [])])


def _times(path: Path) -> str:
    if not path.exists():
        return "## Times\n\nNot measured.\n"
    found = json.loads(path.read_text(encoding="utf-8"))
    ceilings = found["ceilings"]
    lines = [
        "## Times",
        "",
        f"Measured ceilings: {ceilings['read_gb_per_s']:.0f} GB/s, {ceilings['gemm_tflop_per_s']:.0f} TFLOP/s ({ceilings['dtype']}).",
        "",
        "| step | backend | forward us | x floor | TFLOP/s | GB/s | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape in found["shapes"]:
        for times in shape["times"]:
            forward = times["parts"]["forward"]["median"]
            lines.append(
                f"| {shape['title']} | {times['backend']} | {forward:.1f} | {forward / shape['floor_us']:.1f} "
                f"| {times['tflop_per_s']:.1f} | {times['gb_per_s']:.0f} | {times['error']:.0e} |"
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), Path(sys.argv[2]))}\n")
