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
    verdicts = [(head["need"], head["role"], head["substitutes"]) for head in found["heads"]]
    assert verdicts == [("needed", "idle", 1)] and found["dtype"] == "float32"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "roles").rglob("0*.json")}
    assert len(before) == 10
    status, text, _ = run(*arguments)
    assert status == 0 and "judged on 5 others" in text and text.startswith("0 of 1 sink can go singly\n")
    assert before == {path: path.stat().st_mtime_ns for path in before}
    (name,) = [f"{head['layer']}.{head['head']}" for head in found["heads"]]
    assert f"\n{name}  needed, idle" in text and "(length 16, steps 16, block 16, canvases 1, float32)" in " ".join(
        text.split()
    )
    status, text, _ = run(*arguments, "--head", f"{name},{name}")
    assert (
        status == 0 and text.count(f"head {name} is needed, idle: adds little") == 1 and "columns to hide until" in text
    )
    other = next(one for one in ("0.0", "0.1") if one != name)
    for head, message in (
        (other, f"--head {other}: expected a head with a lasting sink, such as {name}"),
        ("first", "--head: expected LAYER.HEAD, such as 4.2"),
        ("0.9", "--head 0.9: expected a layer and a head of"),
    ):
        status, _, error = run(*arguments, "--head", head)
        assert status == 2 and message in error


def head_role(**others):
    from sinkscope.roles import Estimate, HeadRole

    known = {"taken.sink": 0.259, "taken.rowmass": 0.11, "kept.sink": 0.912}
    known |= {"to_text": 0.3, "to_sink_token": 0.6, "to_itself": 0.1}
    measured = {name: Estimate(value, value, value) for name, value in known.items()}
    measured |= {"kl.sink": Estimate(0.693, 0.339, 1.386), "kl.sink.zero": Estimate(0.0028, 0.0009, 0.007)}
    measured["kl.rowmass"] = Estimate(0.014, 0.01, 0.02)
    fields = {"layer": 4, "head": 2, "substitutes": None, "substitutes_at_least": 1, "need": "dispensable"}
    fields |= {"role": "undecided", "reason": "the interval holds both", "token": " a long token"} | others
    return HeadRole(lasting=1.0, place=0.5, position=3, measured=measured, **fields)


def test_the_tables_fit_80_columns_and_show_intervals_controls_and_what_classes_cost_together(capsys):
    from sinkscope.commands.roles import evidence, heading, print_roles
    from sinkscope.roles import Estimate, Roles, Rules

    names = ("sink", "sink.zero", "rowmass", "rowmass.zero")
    measured = {f"kl.{name}": Estimate(1.2345, 1.1, 1.3) for name in names}
    heads = [head_role(layer=number // 20, head=number % 20) for number in range(582, 611)]
    heads.append(head_role(layer=30, head=11, need="needed", role="idle", token=None))
    together = {"dispensable": measured, "undecided": measured}
    found = Roles("lab", "0" * 64, 60, 20, Rules(), tuple(heads), 16, 8, {}, {"length": 32}, together, dtype="bfloat16")
    print_roles(found)
    text = f"{heading(found)}\n{capsys.readouterr().out}\n{evidence(found, 29, 2)}"
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.startswith("29 of 30 sinks can go singly; these 29 together cost 1.23 nats\n")
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["29.2"][1:] == "dispensable, undecided ' a lon… 26/11! 2.8 693 339–1386 14 ?".split()
    assert lines["30.11"][1:5] == ["needed,", "idle", "at", "3"]
    assert "\nundecided      29 1.234 (1.100 to 1.300)" in text
    assert "lab (length 32, bfloat16): 30 of 1200 heads" in text
    assert "\n! 29.2, 29.3" in text and "the control's keys hold much less" in " ".join(text.split())
    assert "the control takes of those that predict, in %: 11.00 (11.00 to" in " ".join(text.split())


def test_a_bundled_model_is_asked_at_the_length_of_the_lab(run):
    for flags, expected in (((), {"length": 32, "steps": 32, "block": 16}), (("--length", "48"), {"length": 48})):
        status, output, error = run("roles", "lab-diffusion", "--problems", "10", "--dry-run", "--json", *flags)
        assert status == 0 and json.loads(output)["settings"] == expected, error
    status, _, error = run("roles", "lab-diffusion", "--problems", "9", "--dry-run")
    assert status == 2 and "at least 10 prompts" in error


def test_a_dry_run_counts_forward_calls_and_writes_nothing(run, diffusion_folder, prompts, tmp_path):
    status, output, _ = run("roles", diffusion_folder, "--prompts", prompts, "--dry-run", "--json", *SETTINGS)
    cost = json.loads(output)
    assert status == 0 and cost["generation"] == 10 * 16
    assert cost["rows"] == 5 * (15 * 9 + 5 * 4)  # 5 classes are hidden together
    assert 0 < cost["passes"] < cost["rows"] and cost["seconds"] > 0 and cost["prompt_tokens"] > 5
    arguments = ("roles", diffusion_folder, "--prompts", prompts, "--dry-run", *SETTINGS)
    assert "seconds on this CPU (1 thread) in float32" in run(*arguments)[1]
    on_card = json.loads(run(*arguments, "--json", "--gpu", "a100")[1])
    assert on_card["card"] == "an A100 of 80 GB" and on_card["tflops"] < 10
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_roles_are_said_where_they_are_known(run, idle_folder, prompts, tmp_path):
    """By tracks, analyse, the figures and the page, for a trace of the same weights only."""
    from sinkscope import open_trace
    from sinkscope.figures import draw_figures, write_page
    from sinkscope.roles import read_roles

    roles, traces = tmp_path / "roles", tmp_path / "traces"
    assert run("roles", idle_folder, "--prompts", prompts, "--out", roles, *SETTINGS)[0] == 0
    assert run("trace", idle_folder, "--prompts", prompts, "--out", traces, "--length", 16)[0] == 0
    found = read_roles(roles)
    (head,) = found.heads
    assert found.source == {"file": "prompts.jsonl"}
    name = f"{head.layer}.{head.head}"
    _, text, error = run("tracks", traces / "000000", "--roles", roles)
    assert "traces have" not in error
    assert "\nneeded, idle: 1 head, " in text and text.rstrip().endswith(name)
    assert ", idle:" not in run("tracks", traces / "000000")[1]
    assert f"  needed, idle: {name}" in run("analyse", traces, "--no-sweep", "--no-choice", "--roles", roles)[1]
    trace = open_trace(traces / "000000")
    files = draw_figures([trace], tmp_path / "figures", only=["1"], roles=read_roles(roles), vector="svg")
    (svg,) = [path.read_text() for path in files if path.suffix == ".svg"]
    assert f"layer {head.layer} head {head.head} (needed, idle)" in svg
    page = write_page([trace], tmp_path / "page", roles=read_roles(roles)).read_text()
    assert "What the sinks of " in page and "<td>needed, idle</td>" in page
    assert "What the sinks of " not in write_page([trace], tmp_path / "page").read_text()
    assert run("figures", traces / "000000", "--only", "3", "--out", tmp_path / "f", "--roles", roles)[0] == 0
    longer, (least, most) = tmp_path / "longer", found.canvas_tokens
    assert run("trace", idle_folder, "--prompts", prompts, "--out", longer, "--length", 32)[0] == 0
    lengths = f"on canvases of {least} tokens" if least == most else f"on canvases of {least} to {most} tokens"
    status, _, error = run("tracks", longer, "--roles", roles)
    assert status == 0 and error.count(f"{lengths} (prompts.jsonl); 10 of 10 traces have {least + 16}") == 1, error
    assert run("trace", "lab-diffusion", "--length", 8, "--out", tmp_path / "other")[0] == 0
    for command in (("tracks",), ("figures", "--only", "3", "--out", tmp_path / "g")):
        status, _, error = run(*command, tmp_path / "other", "--roles", roles)
        assert status == 2 and "idle with weights" in error and "find the roles of this model" in error, command
