"""A damaged file is an error, or changes nothing of the output."""

import random
import shutil

import pytest
from hostile import trial

SHORT = "--length 4 --steps 4 --block 4"
ROLES = f"roles {{0}}/model --dtype bfloat16 --problems 10 --canvases 1 {SHORT} --out {{0}}/found"
TRACE = f"trace {{0}}/model --prompt Q {SHORT} --out {{0}}/out"
TRAIN_TEXT = "train lab-text-diffusion --data {0}/corpus --out {0}/out"
WATCH = "watch-training {0}/textrun --data {0}/corpus --canvases 2 --out {0}/out"
READERS = {
    "trace/manifest.json": "sinks {0}/trace --json",
    "trace/steps-000000.safetensors": "sinks {0}/trace --json",
    "trace/map-000001-000-001.safetensors": "map {0}/trace --step 1 --layer 0 --head 1 --json",
    "statistics/manifest.json": "sinks {0}/statistics --json",
    "statistics/statistics.safetensors": "sinks {0}/statistics --json",
    "results/results.json": "table {0}/results",
    "roles.json": "tracks {0}/trace --roles {0}/roles.json",
    "model/config.json": TRACE,
    "model/model.safetensors": TRACE,
    "corpus/corpus.json": TRAIN_TEXT,
    "corpus/train.bin": TRAIN_TEXT,
    "textrun/recipe.json": WATCH,
    "textrun/snapshots/update-000000.safetensors": WATCH,
    "watch/manifest.json": "watch-training {0}/watch --out {0}/out",
    "watch/update-000001.safetensors": "watch-training {0}/watch --out {0}/out",
    "bundle/bundle.json": "bundle {0}/bundle --check",
    "bundle/steps-000000.safetensors": "bundle {0}/bundle --check",
    "bundle/page.html": "bundle {0}/bundle --check",
    "found/run.json": ROLES,
    "found/choose/000000.json": ROLES,
    "run/recipe.json": "train lab-sink-token --out {0}/run",
    "run/training-state.safetensors": "train lab-sink-token --out {0}/run",
}
CASES = 5
SLOW = ("corpus", "textrun", "watch", "found", "run")


def damaged(content, source):
    """Return a file with a bit flipped, a piece zeroed or doubled, or the end missing."""
    at = source.randrange(len(content)) if source.random() < 0.5 else source.randrange(min(len(content), 2000))
    flipped = content[:at] + bytes([content[at] ^ 1 << source.randrange(8)]) + content[at + 1 :]
    zeroed = content[:at] + bytes(min(16, len(content) - at)) + content[at + 16 :]
    return source.choice([flipped, flipped, content[:at], zeroed, content[:at] + content[max(0, at - 16) :]])


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=[pytest.mark.slow] * (file.split("/")[0] in SLOW)) for file in READERS]
)
def test_other_bytes_are_an_error_or_change_nothing(whole, place, file):
    content, source = (place / file).read_bytes(), random.Random(f"bytes {file}")
    printed = None
    for case in [content, *(damaged(content, source) for _ in range(CASES))]:
        (place / file).write_bytes(case)
        outcome = trial.run(*READERS[file].format(place).split())
        printed = printed or outcome
        assert outcome.status in (1, 2) or (outcome.status, outcome.out) == (0, printed.out), (case[:2000], outcome)
        assert printed.status == 0, printed
        for name in {file.split("/")[0], "out"}:  # a command may go on with the folder
            if (place / name).is_dir():
                shutil.rmtree(place / name)
                if (whole / name).exists():
                    shutil.copytree(whole / name, place / name)
