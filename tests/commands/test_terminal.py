"""No name and no text of a model commands the terminal of its reader, and tables stay within 80 columns."""

import pytest
from planted import causal_map, causal_trace, extras, make_trace, random_columns, write_trace
from rich.cells import cell_len

from sinkscope.recorder.destinations import merge_statistics
from sinkscope.statistics import Summary, summarise
from sinkscope.traces.statistics_folder import StatisticsFolder

LAYERS, HEADS = 30, 9
TEXTS = {
    str(token): text * 30 for token, text in enumerate(("四五", "a b", "\n", " ", ".\x1b[2J", "７", " the", "🍎"), 1)
}


def test_the_text_of_an_answer_keeps_its_lines_and_commands_nothing(capsys):
    from sinkscope.commands.output import note, say

    say("one\n\ttwo\x1b[2J\rthree", "四")
    note("\x07")
    assert capsys.readouterr() == ("one\n\ttwo\\x1b[2J\\x0dthree 四\n", "\\x07\n")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A diffusion and a causal trace of 30 × 9 heads with long texts, and statistics of the first, six times."""
    place = tmp_path_factory.mktemp("a folder with a name that is longer than half of a line of the terminal")
    columns = random_columns(0, layers=LAYERS, heads=HEADS)
    wide = make_trace(columns, **extras(columns))
    causal = causal_trace(24, *[[causal_map(60, sink=head % 4) for head in range(HEADS)]] * LAYERS)
    wide.manifest["vocabulary"] = causal.manifest["vocabulary"] = TEXTS
    write_trace(place / "diffusion", wide)
    write_trace(place / "causal", causal, causal=True)
    kept, arrays = (
        StatisticsFolder(place / "statistics", {}, merge_statistics, 6),
        Summary.of(summarise(wide)).to_arrays(),
    )
    for number in range(6):
        kept.commit(number, arrays, {"causal": False}, TEXTS)
    return place


KINDS = [("diffusion", ("sinks", "tracks", "analyse", "analyse --all", "analyse --versus"))]
KINDS += [("causal", KINDS[0][1]), ("statistics", ("sinks", "analyse", "analyse --all"))]


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(("kind", "command"), [(kind, command) for kind, them in KINDS for command in them])
def test_tables_stay_within_80_columns(run, folders, monkeypatch, command, kind, colour):
    monkeypatch.setenv("FORCE_COLOR" if colour else "NO_COLOR", "1")
    name, *flags = command.split()
    status, out, err = run(name, folders / kind, *flags, *[folders / "causal"] * ("--versus" in flags))
    assert status == 0 and ("\x1b[1m" in out) == colour, err
    assert "\x1b[2J" not in out and ("…" in out) >= (name == "sinks")
    assert colour or 70 < max(map(cell_len, out.splitlines())) <= 80, out
    assert ("concentration" in out.split()) == ("--all" in flags)


def test_checks_and_definitions_stay_within_80_columns(run, diffusion_folder):
    for command in (("check", diffusion_folder), ("analyse", "--definitions")):
        status, out, _ = run(*command)
        assert status == 0 and 72 < max(map(cell_len, out.splitlines())) <= 80
