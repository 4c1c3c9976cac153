"""Puts files of the repository into the code blocks of docs/*.md, so that a reader copies text that is tested.

A block that follows `<!-- file: PATH -->` becomes the content of PATH. `--check` writes nothing and fails if a block differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- file: (?P<path>\S+) -->\n```\w*\n)(?P<text>.*?)(```\n)", re.DOTALL)


def embedded(page_text: str) -> str:
    """The page with every marked block as its file is now. Raises FileNotFoundError for a path that leads nowhere."""
    return BLOCK.sub(lambda match: match[1] + (ROOT / match["path"]).read_text(encoding="utf-8") + match[4], page_text)


def stale_pages() -> dict[Path, str]:
    """Pages whose blocks differ from the files, and the text they should have."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
    return {page: embedded(text) for page, text in texts.items() if embedded(text) != text}


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block differs from its file")
    check = parser.parse_args().check
    stale = stale_pages()
    for page, text in stale.items():
        print(f"{page.relative_to(ROOT)} {'is stale: run `make docs-contracts`' if check else 'written'}")
        if not check:
            page.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
