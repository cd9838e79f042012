"""Public-domain books as a corpus for `sinkscope train lab-text-… --data FOLDER`.

    git clone https://github.com/mlschmitt/classic-books-markdown
    python experiments/books_corpus.py classic-books-markdown --out books

Reads the pinned commit from the clone's history, so that everyone gets the same texts. Books without a year or dated 1929
or later are dropped: what appeared before is in the public domain in the United States. Every fortieth book is held out.
Cost: 5 minutes, 0.4 GB. The texts are not part of this repository.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.lab.corpus import LongText, make_corpus

COMMIT = "9448827"
REPOSITORY = "github.com/mlschmitt/classic-books-markdown"
FIRST_YEAR_LEFT_OUT = 1929
HELD_OUT_EVERY = 40
LEFT_OUT = ("Samuel Richardson/Clarissa.md", "Various/King James Bible.md")  # above 4 MB, too large for some mirrors


def git(clone: Path, *arguments: str) -> bytes:
    run = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True)
    if run.returncode:
        raise CallError(f"{clone}: expected a clone of {REPOSITORY} with commit {COMMIT} ({run.stderr.decode(errors='replace').strip()})")
    return run.stdout


def read_books(clone: Path) -> Iterator[LongText]:
    names = [name for name in git(clone, "ls-tree", "-r", "-z", "--name-only", COMMIT).decode().split("\0") if name.count("/") == 1]
    kept = 0
    for name in sorted(name for name in names if name.endswith(".md") and name not in LEFT_OUT):
        text = git(clone, "show", f"{COMMIT}:{name}").decode("utf-8", errors="replace")
        year = re.search(r"^## Year:\s*(-?\d+)", text, re.MULTILINE)
        if year is None or int(year[1]) >= FIRST_YEAR_LEFT_OUT:
            continue
        body = text.split("\n-------\n", 1)[-1].replace("\r", "").strip()
        kept += 1
        yield LongText(name.removesuffix(".md"), body, held_out=kept % HELD_OUT_EVERY == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args()
    try:
        print(make_corpus(read_books(options.clone), options.out, vocabulary=options.vocabulary, source=f"{REPOSITORY} at {COMMIT}"))
    except CallError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
