import json

import pytest

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SETTINGS = ("--length", "16", "--steps", "16", "--block", "16", "--canvases", "1")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": PROMPT.replace("7", str(number))}) + "\n" for number in range(10)))
    return path


def test_roles_are_printed_kept_and_resumed(run, diffusion_folder, prompts, tmp_path):
    arguments = ("roles", diffusion_folder, "--prompts", prompts, "--out", tmp_path / "roles", *SETTINGS)
    status, output, _ = run(*arguments, "--json")
    found = json.loads(output)
    assert status == 0 and found["prompts"] == 10 and found["judged"] == 5 and found["failed"] == {}
    assert found == json.loads((tmp_path / "roles/roles.json").read_text())
    for head in found["heads"]:
        assert {"layer", "head", "role", "lasting", "token", "measured", "substitutes", "removable"} <= head.keys()
        assert {"share", "committed_share", "norm_ratio", "evenness", "kl.sink", "kl.sink.zero", "kl.rowmass", "kl.random"} <= head[
            "measured"
        ].keys()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "roles").rglob("0*.json")}
    assert len(before) == 10
    status, text, _ = run(*arguments)
    assert status == 0 and "heads have a lasting sink" in text and "judged on 5 others" in text
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_dry_run_counts_forward_calls_and_writes_nothing(run, diffusion_folder, prompts, tmp_path):
    status, output, _ = run("roles", diffusion_folder, "--prompts", prompts, "--dry-run", "--json", *SETTINGS)
    cost = json.loads(output)
    assert status == 0 and cost["generation"] == 10 * 16 and cost["rows"] == 5 * 15 * 10 and cost["forwards"] == 10 * 17 + 5 * 5
    assert list(tmp_path.iterdir()) == [prompts]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected --out FOLDER, or --dry-run"),
        (("--problems", "9", "--dry-run"), "expected at least 10 prompts, half to choose heads and half to judge them, found 9"),
        (("--canvases", "0", "--out", "OUT"), "canvases: expected at least 1, found 0"),
        (("--rows", "0", "--out", "OUT"), "rows: expected at least 1, found 0"),
    ],
)
def test_a_wrong_call_is_one_message_and_leaves_nothing(run, diffusion_folder, tmp_path, arguments, message):
    arguments = [tmp_path / "out" if one == "OUT" else one for one in arguments]
    status, _, error = run("roles", diffusion_folder, *arguments)
    assert status == 2 and message in error and not list(tmp_path.iterdir())
