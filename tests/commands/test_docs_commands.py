"""The commands in docs/ run unchanged, on small traces; those that need a hub model are at least parsed."""

import json
import re
import shlex
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROMPT = "Q: Tom has 7 apples.\nA:"
SHORTER = {
    "sinkscope evaluate lab-diffusion": ["--limit", "1", "--shots", "0", "--length", "4"],
    "sinkscope figures run.trace --out figures": ["--only", "3"],
    "sinkscope figures a.trace b.trace": ["--only", "3"],
    "sinkscope analyse": ["--no-choice"],
    "sinkscope likelihood smollm2": ["--limit", "1"],
    "sinkscope roles smollm2": ["--dry-run"],
    "sinkscope roles lab-diffusion --out": ["--problems", "10", "--canvases", "1"],
    "sinkscope trace MODEL": ["--length", "4"],
    "sinkscope trace lab-sink-token": ["--length", "16", "--block", "16"],
}
"""What is added to a line that would take long; the line itself stays."""


def commands(page):
    """The shell lines of a page, continued ones whole, without their comments."""
    lines = re.findall(r"^    (sinkscope (?:[^\n]*\\\n)*[^\n]*)$", page, re.MULTILINE)
    return [shlex.join(shlex.split(line.replace("\\\n", " "), comments=True)) for line in lines]


LINES = [(path.name, line) for path in sorted(DOCS.glob("*.md")) for line in commands(path.read_text())]
HUB = [one for one in LINES if re.search(r" [\w-]+/[A-Z]", one[1]) and "--dry-run" not in one[1]]
CUT = [one for one in LINES if "…" in one[1]]
LONG = [one for one in LINES if one[1].startswith("sinkscope train")]
TRAINED = [one for one in LINES if re.match("sinkscope (fold|convert|watch-training) ", one[1])]
LOCAL = [one for one in LINES if one not in HUB + CUT + LONG + TRAINED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pages name."""
    import sinkscope

    place, model = tmp_path_factory.mktemp("docs"), sinkscope.load("lab-diffusion")
    for count, name in enumerate(("run", "a", "b", "plain"), start=7):  # analyse takes each prompt once
        with sinkscope.recording(model, out=place / f"{name}.trace"):
            sinkscope.generate(model, PROMPT.replace("7", str(count)), length=16, block=16, steps=16)
    (place / "prompts.jsonl").write_text(json.dumps({"prompt": PROMPT}) + "\n")
    (place / "problems.jsonl").write_text(10 * (json.dumps({"prompt": PROMPT}) + "\n"))
    (place / "text.txt").write_text((DOCS / "glossary.md").read_text())
    return place


@pytest.mark.parametrize("page", dict.fromkeys(page for page, _ in LOCAL))
@pytest.mark.slow
def test_the_commands_of_a_page_run(run, folder, diffusion_folder, monkeypatch, page):
    monkeypatch.chdir(folder)
    for line in (line for name, line in LOCAL if name == page):
        more = next((more for start, more in SHORTER.items() if line.startswith(start) and more[0] not in line), [])
        words = [str(diffusion_folder) if word == "MODEL" else word for word in shlex.split(line)[1:]]
        status, out, err = run(*words, *more)
        assert (status, bool(out.strip())) == (0, True), f"{line}\n{err}"


@pytest.mark.parametrize(("page", "line"), HUB)
def test_commands_on_hub_models_are_well_formed(run, tmp_path, monkeypatch, page, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "prompts.jsonl").write_text(10 * (json.dumps({"prompt": PROMPT}) + "\n"))
    _, _, err = run(*shlex.split(line)[1:])
    assert "no such folder here, and it cannot be fetched" in err


@pytest.mark.parametrize(("page", "line"), LONG)
def test_training_starts_as_it_says(run, tmp_path, monkeypatch, page, line):
    from sinkscope.lab import training

    asked = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("A text of the user's own.\n")
    monkeypatch.setattr(training, "train_checkpoint", lambda recipe, out, **_: asked.append(recipe.name) or out)
    status, out, _ = run(*shlex.split(line)[1:])
    assert (status, out.strip(), asked) == (0, "DIR", [line.split()[2]])


@pytest.mark.parametrize(("page", "line"), TRAINED)
def test_commands_on_trained_models_are_well_formed(run, tmp_path, monkeypatch, page, line):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*shlex.split(line)[1:])
    assert status and re.search("DIR|FILE|FOLDER", err)
    assert not re.search("[Pp]arsing|[Uu]nrecognized|[Ii]nvalid", err)
