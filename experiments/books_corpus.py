"""Public-domain books as a corpus for `sinkscope train lab-text-… --data FOLDER`.

    git clone https://github.com/mlschmitt/classic-books-markdown
    python experiments/books_corpus.py classic-books-markdown --out books
    python experiments/books_corpus.py experiments/books_excerpt.jsonl --out few-pages --vocabulary 600

Reads the pinned commit from the clone's history, so that everyone gets the same texts; ``books.json`` lists them with
their checksums, and the script says whether what it made is the same. Books without a year or dated 1929
or later are dropped: what appeared before is in the public domain in the United States. Every fortieth book is held
out.
Cost: 5 minutes, 0.4 GB. The texts are not part of this repository, but for a page of each of seventeen held-out books,
``books_excerpt.jsonl``, which ``--excerpt FILE`` wrote: prompts for `sinkscope roles` and `trace` on a network trained
on the books, and a corpus of seconds on which a training can be tried.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from _settings import Arguments, run_script

from sinkscope.errors import CallError
from sinkscope.lab.texts import LongText, make_corpus
from sinkscope.runs.files import numbered, parse_json, read_text

COMMIT = "9448827"
REPOSITORY = "github.com/mlschmitt/classic-books-markdown"
FIRST_YEAR_LEFT_OUT = 1929
HELD_OUT_EVERY = 40
PAGE = 1600
"""Characters of a book in the excerpt, about 400 tokens; cut where a sentence ends."""
LISTED = Path(__file__).with_name("books.json")
LEFT_OUT = ("Samuel Richardson/Clarissa.md", "Various/King James Bible.md")  # above 4 MB, too large for some mirrors


def git(clone: Path, *arguments: str) -> bytes:
    run = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True)
    if run.returncode:
        raise CallError(
            f"{clone}: expected a clone of {REPOSITORY} with commit {COMMIT} ({run.stderr.decode(errors='replace').strip()})"
        )
    return run.stdout


def read_books(clone: Path) -> Iterator[LongText]:
    names = [
        name
        for name in git(clone, "ls-tree", "-r", "-z", "--name-only", COMMIT).decode().split("\0")
        if name.count("/") == 1
    ]
    kept = 0
    for name in sorted(name for name in names if name.endswith(".md") and name not in LEFT_OUT):
        text = git(clone, "show", f"{COMMIT}:{name}").decode("utf-8", errors="replace")
        year = re.search(r"^## Year:\s*(-?\d+)", text, re.MULTILINE)
        if year is None or int(year[1]) >= FIRST_YEAR_LEFT_OUT:
            continue
        body = text.split("\n-------\n", 1)[-1].replace("\r", "").strip()
        kept += 1
        yield LongText(name.removesuffix(".md"), body, held_out=kept % HELD_OUT_EVERY == 0)


def compare(corpus: Path) -> str:
    """Return what the corpus has in common with the one that the published numbers were measured on."""
    made, ours = (json.loads(path.read_text(encoding="utf-8")) for path in (corpus / "corpus.json", LISTED))
    wanted = {one["title"]: one["sha256"] for one in ours["documents"]}
    found = {one["title"]: one["sha256"][: len(next(iter(wanted.values())))] for one in made["documents"]}
    if others := [title for title in {**wanted, **found} if wanted.get(title) != found.get(title)]:
        return f"{len(others)} books differ from {LISTED.name}, among them {others[0]}"
    changed = [name for name, sha256 in ours["files"].items() if made["files"].get(name) != sha256]
    tokens = (
        f"the tokens are not ({', '.join(changed)}): another vocabulary or tokenizer"
        if changed
        else "and so are the tokens"
    )
    return f"all {len(wanted)} books are those of {LISTED.name}, {tokens}"


def read_excerpt(path: Path) -> Iterator[LongText]:
    """Return the pages of the excerpt; every eighth is held out."""
    for number, line in numbered(read_text(path, CallError)):
        page = parse_json(line, f"{path}, line {number}", CallError)
        if not (isinstance(page, dict) and all(isinstance(page.get(name), str) for name in ("title", "prompt"))):
            raise CallError(
                f"{path}, line {number}: expected an object with the texts title and prompt, found {line[:60]!r}"
            )
        yield LongText(page["title"], page["prompt"], held_out=number % 8 == 0)


def write_excerpt(books: Iterator[LongText], path: Path) -> None:
    """Write the page behind the middle of every held-out book, from the beginning of a paragraph."""
    rows = []
    for book in (one for one in books if one.held_out):
        begin = book.text.index("\n\n", len(book.text) // 2) + 2
        page = re.match(r".*[.!?]", book.text[begin : begin + PAGE], re.DOTALL)[0].strip()
        rows.append(json.dumps({"title": book.title, "prompt": page}, ensure_ascii=False) + "\n")
    path.write_text("".join(rows), encoding="utf-8")


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("source", type=Path, help="the clone, or books_excerpt.jsonl")
    written = parser.add_mutually_exclusive_group(required=True)
    written.add_argument("--out", type=Path, help="the corpus")
    written.add_argument("--excerpt", type=Path, help="write a page of every held-out book instead")
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args()
    books = read_excerpt(options.source) if options.source.is_file() else read_books(options.source)
    if options.excerpt is not None:
        write_excerpt(books, options.excerpt)
    else:
        print(make_corpus(books, options.out, vocabulary=options.vocabulary, source=f"{REPOSITORY} at {COMMIT}"))
        if not options.source.is_file():
            print(compare(options.out))


if __name__ == "__main__":
    run_script(main)
