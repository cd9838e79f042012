import json

import _networks_by_hand
import pytest

SETTINGS = ("--length", "16", "--steps", "16", "--block", "16", "--canvases", "1")


@pytest.fixture(scope="module")
def idle_folder(tmp_path_factory):
    """A network whose one sink is idle and cannot be hidden, and prompts for it."""
    folder = tmp_path_factory.mktemp("by-hand") / "idle"
    texts = _networks_by_hand.save(folder, "idle")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def prompts(idle_folder):
    return idle_folder / "prompts.jsonl"


def test_roles_are_printed_kept_and_resumed(run, idle_folder, prompts, tmp_path):
    arguments = ("roles", idle_folder, "--prompts", prompts, "--out", tmp_path / "roles", *SETTINGS)
    status, output, _ = run(*arguments, "--json")
    found = json.loads(output)
    assert status == 0 and found["prompts"] == 10 and found["judged"] == 5 and found["failed"] == {}
    kept = json.loads((tmp_path / "roles/roles.json").read_text())
    assert kept.pop("checksum") and found == kept
    assert [(head["role"], head["substitutes"], head["removable"]) for head in found["heads"]] == [("idle", 1, False)]
    for head in found["heads"]:
        assert {"layer", "head", "role", "lasting", "token", "measured", "substitutes", "removable"} <= head.keys()
        assert {"share", "committed_share", "norm_ratio", "evenness", "kl.sink", "kl.sink.zero", "kl.rowmass", "kl.random"} <= head[
            "measured"
        ].keys()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "roles").rglob("0*.json")}
    assert len(before) == 10
    status, text, _ = run(*arguments)
    assert status == 0 and "1 of 3 heads have a lasting sink" in text and "judged on 5 others" in text
    assert (
        "1 idle, 0 broadcast, 0 carrier, 0 undecided" in text
        and "0 of them change the predictions by less than 0.005 nats, 1 by more" in text
    )
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_dry_run_counts_forward_calls_and_writes_nothing(run, diffusion_folder, prompts, tmp_path):
    status, output, _ = run("roles", diffusion_folder, "--prompts", prompts, "--dry-run", "--json", *SETTINGS)
    cost = json.loads(output)
    assert status == 0 and cost["generation"] == 10 * 16 and cost["rows"] == 5 * 15 * 10 and cost["forwards"] == 10 * 17 + 5 * 5
    assert not list(tmp_path.iterdir())


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


def test_roles_are_said_where_they_are_known(run, idle_folder, prompts, tmp_path):
    """By tracks, analyse, the figures and the page, for a trace of the same weights only."""
    from PIL import Image

    from sinkscope import open_trace
    from sinkscope.figures import draw_figures, write_page
    from sinkscope.roles import read_roles

    roles, traces = tmp_path / "roles", tmp_path / "traces"
    assert run("roles", idle_folder, "--prompts", prompts, "--out", roles, *SETTINGS)[0] == 0
    assert run("trace", idle_folder, "--prompts", prompts, "--out", traces, "--length", 16)[0] == 0
    (head,) = read_roles(roles).heads
    name = f"{head.layer}.{head.head}"
    _, text, _ = run("tracks", traces / "000000", "--roles", roles)
    assert "  idle: 1 head, " in text and text.rstrip().endswith(name)
    assert "idle:" not in run("tracks", traces / "000000")[1]
    assert f"  idle: {name}" in run("analyse", traces, "--no-sweep", "--no-choice", "--roles", roles)[1]
    trace = open_trace(traces / "000000")
    files = draw_figures([trace], tmp_path / "figures", only=["1"], roles=read_roles(roles))
    (png,) = [path for path in files if path.suffix == ".png"]
    with Image.open(png) as image:
        assert f"layer {head.layer} head {head.head} (idle)" in image.info["Description"]
    page = write_page([trace], tmp_path / "page", roles=read_roles(roles)).read_text()
    assert "What the sinks do" in page and "<td>idle</td>" in page
    assert "What the sinks do" not in write_page([trace], tmp_path / "page").read_text()
    assert run("figures", traces / "000000", "--only", "3", "--out", tmp_path / "f", "--roles", roles)[0] == 0
    assert run("trace", "lab-diffusion", "--length", 8, "--out", tmp_path / "other")[0] == 0
    for command in (("tracks",), ("analyse", "--no-sweep", "--no-choice"), ("figures", "--only", "3", "--out", tmp_path / "g")):
        status, _, error = run(*command, tmp_path / "other", "--roles", roles)
        assert status == 2 and "idle with weights" in error and "find the roles of this model" in error, command


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no roles there (No such file or directory); `sinkscope roles MODEL --out FOLDER` finds them"),
        ("{", "expected JSON"),
        ("[]", "expected a JSON object, found a list of 0; expected what `sinkscope roles` writes"),
        ("{}", "model: expected a value, found none; expected what `sinkscope roles` writes"),
    ],
)
def test_what_is_no_file_of_roles_is_refused(run, idle_folder, prompts, tmp_path, content, message):
    assert run("trace", idle_folder, "--prompt", "01/2", "--length", 8, "--out", tmp_path / "t")[0] == 0
    if content is not None:
        (tmp_path / "roles.json").write_text(content)
    status, _, error = run("tracks", tmp_path / "t", "--roles", tmp_path)
    assert status == 2 and message in error
