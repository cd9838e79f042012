"""`sinkscope analyse` on traces on disk, as a person types it."""

import json
import re
import shutil

import numpy as np
import pytest
from planted import extras, make_trace, random_columns, write_trace

from sinkscope.runs.files import with_checksum
from sinkscope.sinks import averaged_moves, find_sinks, movement_test, track
from sinkscope.sinks.tracking import place_of
from sinkscope.statistics import Threshold, analyse
from sinkscope.traces import open_traces


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysed")
    for one in range(6):
        columns = random_columns(one)
        write_trace(folder / f"{one:06d}", make_trace(columns, seed=one, **extras(columns)))
    return folder


def test_the_json_is_that_of_the_function(run, folders):
    status, out, _ = run("analyse", folders, "--json", "--no-sweep", "--no-choice")
    document = json.loads(out)
    assert status == 0
    assert document["traces"] == [str(folders)]
    expected = analyse(open_traces(folders), [Threshold(3.0)], choice=False).as_dict()
    assert document["statistics"] == json.loads(json.dumps(expected["statistics"]))
    assert document["prompts"] == 6


def test_a_copy_of_a_trace_is_no_second_prompt(run, folders, tmp_path):
    shutil.copytree(folders / "000000", tmp_path / "copy")
    call = ("analyse", folders, tmp_path / "copy", "--no-sweep", "--no-choice")
    said = f"as it is one prompt, found the values of {folders / '000000'} in {tmp_path / 'copy'} too: a copy, "
    status, out, err = run(*call)
    assert (status, out) == (2, "") and said in err
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    changed = with_checksum({**manifest, "command": "another"})  # the parts are the same
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(changed))
    assert said in run(*call)[2]


def test_the_table_has_every_part_and_the_point_that_was_asked_for(run, folders):
    two = (folders / "000000", folders / "000001")
    asked = ("--excess", 2, "--unit", "percent", "--tolerance", 1)
    status, out, _ = run("analyse", *two, *asked, "--all")
    assert status == 0 and "nan" not in out
    lines, text = [line.strip() for line in out.splitlines()], " ".join(out.split())
    assert re.match(r"position \d+, '.+': main sink of \d of 6 heads, with \d+\.\d% of the attention of all quer", text)
    assert " 2 prompts, 2 layers × 3 heads; excess over the mean of the other columns (Eq. 3) > 2 percent; " in text
    parts = "movement triggers agreement composition choice groups concentration epsilon norms"
    assert set(parts.split()) <= set(lines)
    assert sum(line.startswith("drift  ") for line in lines) == 2  # of the main sink, and of the answer's queries


def test_moves_stand_beside_those_of_shuffled_steps_and_at_an_equal_share(run, folders):
    traces, rows = open_traces(folders)[:2], []
    for trace in traces:
        sinks, (equal,) = find_sinks(trace), averaged_moves(trace)
        tracks = track(sinks)
        test, never = movement_test(tracks.main, tracks.is_sink), (tracks.main < 0).all(axis=0)
        shares = (never.mean(), (tracks.main >= 0).mean(), place_of(sinks, trace.tokens[:]).share)
        moves = (test.moves_per_head, test.null_moves[0], equal.moves_per_head, test.drift_per_step)
        rows.append([*(100 * share for share in shares), *moves])
    out = run("analyse", *(one.folder for one in traces))[1]
    found = re.findall(r"^[a-z ]+(?:3/16 of the attention|, over all heads)? +(-?\d[\d.]*) ", out, re.MULTILINE)
    assert found == [f"{number:.4g}" for number in np.mean(rows, axis=0)] and "moves, of 30 queries" in out


def test_two_sets_are_told_as_a_difference(run, folders):
    status, out, _ = run("analyse", folders, "--versus", folders, "--no-sweep", "--no-choice", "--json")
    document = json.loads(out)
    assert status == 0
    assert (document["prompts"], document["versus_prompts"]) == (6, 6)
    assert {row["value"] for row in document["statistics"]} <= {0.0, None}
    status, out, _ = run("analyse", folders, "--versus", folders, "--no-sweep", "--no-choice")
    assert "second minus first (95 % interval over prompts; with so few about 90 %)" in " ".join(out.split())


def test_training_counts_are_read_and_checked(run, folders, tmp_path):
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"3": 10, "4": 5, "5": 2, "6": 1, "7": 8, "8": 3}))
    status, out, _ = run("analyse", folders, "--training-counts", counts, "--no-sweep", "--no-choice", "--json")
    assert status == 0
    assert [row for row in json.loads(out)["statistics"] if row["name"] == "composition.frequency_correlation"]
    counts.write_text("[1, 2]")
    status, _, err = run("analyse", folders, "--training-counts", counts)
    assert status == 2
    assert "expected JSON {token id: count}" in err
    status, _, err = run("analyse", folders, "--training-counts", "lab")
    assert status == 2
    assert "expected a trace of lab-diffusion, " in err
