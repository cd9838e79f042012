"""Figures, numbers and page of traces with planted sinks: what is drawn is what was planted."""

import csv
import json
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from sinkscope.errors import CallError, TraceError
from sinkscope.figures import Table, draw_figures, summarise, write_page
from sinkscope.figures.digest import digest
from sinkscope.figures.drawing import FIGURES
from sinkscope.figures.figure import figure_style, plain
from sinkscope.figures.histogram import column_sum_histogram
from sinkscope.figures.incoming import incoming_attention
from sinkscope.figures.labels import model_label, tick_label, token_label
from sinkscope.figures.positions import main_sink_positions
from sinkscope.sinks import find_sinks, is_sink, track
from sinkscope.traces import TraceWriter, open_trace
from sinkscope.traces.trace_array import TraceArray

STEPS, LAYERS, HEADS, PROMPT, LENGTH = 19, 2, 3, 11, 18
CAUSAL_STEPS = 17
POSITIONS = PROMPT + LENGTH
MASK = 0
VOCABULARY = ["<|mask|>", "\n", "<script>alert('x')</script>", " Tom", "$x$", "漢", "a very long token"]
STATIC, MOVING, FLIPPING, EMPTY = (0, 1), (1, 2), (1, 0), (0, 2)
FILES = ["figure1-incoming-attention", "figure3-column-sums", "figure5-main-sink-strength", "figure7-main-sink-position"]
OLDER = ("1", "3", "5", "7")  # the figures of this file; the others have one of their own


def planted_columns(seed=0):
    """[step, layer, head, key]: a static sink, one that moves a step at a time and stops, one that flips; three heads without."""
    columns = np.random.default_rng(seed).random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32) / 2
    for step in range(STEPS):
        columns[(step, *STATIC, 4)] = 9.5
        columns[(step, *MOVING, min(PROMPT + step, PROMPT + 12))] = 6 + step / 8
        columns[(step, *FLIPPING, (2, 8)[step % 2])] = 7.25
    return columns


def write_trace(folder, columns, *, name="org/planted", causal=False, complete=True, **more):
    """A trace that commits one token a step from the left."""
    folder.mkdir(parents=True)
    manifest = {
        "model": {"name": name, "family": "llada", "weight_hash": "0123abcd", "parameters": 12345},
        "causal": causal,
        "sampler": {"name": "llada", "length": LENGTH, "steps": STEPS},
        "prompt": "Is 1 < 2 & 3 > 2? <b>bold</b>",
        "prompt_length": PROMPT,
        "mask_id": MASK,
        "layers": [f"layers.{layer}" for layer in range(columns.shape[1])],
        "heads": columns.shape[2],
        "kv_heads": columns.shape[2],
        "level": "columns",
        "dtype": "float32",
        "device": "cpu",
        "versions": {"python": "3.x"},
        "vocabulary": {str(token): text for token, text in enumerate(VOCABULARY)},
    }
    writer = TraceWriter(folder, manifest)
    tokens = np.full(POSITIONS, MASK, np.int32)
    tokens[:PROMPT] = 1 + np.arange(PROMPT) % (len(VOCABULARY) - 1)
    for step, sums in enumerate(columns):
        written = np.full(POSITIONS, -1, np.int32)
        if step < LENGTH:
            written[PROMPT + step] = 1 + step % (len(VOCABULARY) - 1)
        extra = {key: value[step] for key, value in more.items()}
        writer.add(
            {
                "tokens": tokens.copy(),
                "masked": (tokens == MASK).astype(np.uint8),
                "written": written,
                "lengths": np.array(POSITIONS, np.int32),
                "column_sums": sums,
                **extra,
            }
        )
        tokens = np.where(written >= 0, written, tokens)
    writer.close(complete=complete, **({"text": "5 < 6 & so on"} if complete else {}))
    return open_trace(folder)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("traces") / "planted", planted_columns())


@pytest.fixture(scope="module")
def causal_trace(tmp_path_factory):
    """Columns that never move, and rows of the newest query that go to one token, and soon to another; fewer steps."""
    columns = planted_columns(1)[:CAUSAL_STEPS]
    columns[:, MOVING[0], MOVING[1]] = 0.1
    columns[:, MOVING[0], MOVING[1], 3] = 8
    rows = np.full((CAUSAL_STEPS, LAYERS, HEADS, POSITIONS), 0.01, np.float32)
    for step in range(CAUSAL_STEPS):
        rows[(step, *MOVING, 3 if step < 7 else 13)] = 0.72
    folder = tmp_path_factory.mktemp("traces") / "causal"
    return write_trace(folder, columns, name="/somewhere/else/my-llama", causal=True, last_query=rows)


@pytest.fixture(scope="module")
def drawn(trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    return SimpleNamespace(folder=folder, paths=draw_figures([trace], folder, only=OLDER))


@pytest.fixture(scope="module")
def compared(trace, causal_trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return SimpleNamespace(folder=folder, paths=draw_figures([trace, causal_trace], folder, compare=True, only=OLDER))


def rows_of(folder, name, **where):
    with (folder / f"{name}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if all(row[key] == str(value) for key, value in where.items())]


def test_every_figure_is_png_pdf_and_csv_and_the_png_carries_its_caption(drawn):
    from PIL import Image

    assert [path.name for path in drawn.paths] == [f"{name}.{kind}" for name in FILES for kind in ("png", "pdf", "csv")]
    assert sorted(path.name for path in drawn.folder.iterdir()) == sorted(path.name for path in drawn.paths)
    for path in drawn.paths:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert "org/planted" in image.info["Title"]
                assert "does not show" in image.info["Description"]


def test_figure_1_draws_the_planted_columns_of_the_head_whose_sink_wanders(drawn):
    columns = planted_columns()
    head = rows_of(drawn.folder, FILES[0], panel="head")
    assert {(row["layer"], row["head"]) for row in head} == {("1", "2")}
    assert len(head) == STEPS * POSITIONS
    for row in head:
        assert np.float32(row["column_sum"]) == columns[(int(row["step"]), *MOVING, int(row["position"]))]
    marked = [int(row["position"]) for row in head if row["marked"] == "1"]
    assert marked == [min(PROMPT + step, PROMPT + 12) for step in range(STEPS)]
    committed = [(int(row["step"]), int(row["position"])) for row in head if row["committed"] == "1"]
    assert committed == [(step, PROMPT + step) for step in range(LENGTH)]
    assert {row["token"] for row in head if row["step"] == "0" and int(row["position"]) >= PROMPT} == {"[M]"}


def test_figure_1_draws_the_mean_over_all_heads(drawn):
    columns = planted_columns()
    mean = rows_of(drawn.folder, FILES[0], panel="mean")
    dense = columns.astype(np.float64).mean(axis=(1, 2))
    found = np.array([float(row["column_sum"]) for row in mean]).reshape(STEPS, POSITIONS)
    np.testing.assert_allclose(found, dense, rtol=1e-6)
    assert [int(row["position"]) for row in mean if row["marked"] == "1"] == dense.argmax(axis=1).tolist()


def test_figure_3_counts_every_column_once(drawn):
    columns = planted_columns()
    rows = rows_of(drawn.folder, FILES[1])
    edges = [float(row["column_sum_from"]) for row in rows] + [float(rows[-1]["column_sum_to"])]
    assert np.diff(edges) == pytest.approx(0.25)
    assert [int(row["columns"]) for row in rows] == np.histogram(columns, edges)[0].tolist()
    assert sum(int(row["columns"]) for row in rows) == columns.size
    assert float(rows[0]["threshold_column_sum"]) == pytest.approx(1 + 3 * (1 - 1 / POSITIONS))


def test_figure_3_widens_its_bins_for_long_canvases(tmp_path):
    columns = planted_columns()
    columns[0, 0, 0, 0] = 28.9
    drawn = column_sum_histogram([digest(write_trace(tmp_path / "wide", columns))])
    edges = [float(row[1]) for row in drawn.rows] + [float(drawn.rows[-1][2])]
    assert np.diff(edges) == pytest.approx(0.5)
    assert [row[3] for row in drawn.rows] == np.histogram(columns, edges)[0].tolist()


def test_figure_5_is_the_mean_over_the_steps_with_a_main_sink(drawn):
    columns = planted_columns()
    columns_of = {(int(row["layer"]), int(row["head"])): row for row in rows_of(drawn.folder, FILES[2])}
    assert set(columns_of) == set(np.ndindex(LAYERS, HEADS))
    for (layer, head), row in columns_of.items():
        own = columns[:, layer, head]
        largest = [step.max() for step in own if step.max() - (step.sum() - step.max()) / (POSITIONS - 1) > 3]
        assert int(row["steps_with_main_sink"]) == len(largest)
        if largest:
            assert float(row["mean_main_sink_column_sum"]) == pytest.approx(np.mean(largest), rel=1e-6)
        else:
            assert row["mean_main_sink_column_sum"] == ""
    assert columns_of[EMPTY]["steps_with_main_sink"] == "0"


def test_figure_7_follows_the_planted_heads(drawn):
    series = {row["series"] for row in rows_of(drawn.folder, FILES[3])}
    assert series == {"most moves", "most positions", "most static", "committed"}

    def path(name):
        rows = rows_of(drawn.folder, FILES[3], series=name)
        return {(int(row["layer"]), int(row["head"])) for row in rows}, [int(row["position"]) for row in rows]

    assert path("most moves") == ({FLIPPING}, [(2, 8)[step % 2] for step in range(STEPS)])
    assert path("most positions") == ({MOVING}, [min(PROMPT + step, PROMPT + 12) for step in range(STEPS)])
    assert path("most static") == ({STATIC}, [4] * STEPS)
    committed = rows_of(drawn.folder, FILES[3], series="committed")
    assert [(int(row["step"]), int(row["position"])) for row in committed] == [(step, PROMPT + step) for step in range(LENGTH)]


def test_comparison_is_one_figure_of_both_models(compared):
    assert [path.name for path in compared.paths if path.suffix == ".png"] == [f"{name}.png" for name in FILES]
    for name in FILES:
        assert {row["model"] for row in rows_of(compared.folder, name)} == {"org/planted", "my-llama"}


def test_comparison_has_a_common_scale(trace, causal_trace):
    with figure_style(wide=True):
        drawn = incoming_attention([digest(trace), digest(causal_trace)])
    maps = [(axes, axes.get_images()[0]) for axes in drawn.figure.axes if axes.get_images()]
    assert len(maps) == 4
    for pair in (maps[:2], maps[2:]):
        assert len({(image.norm.vmin, image.norm.vmax, image.norm.gamma) for _, image in pair}) == 1
        assert pair[0][1].norm.vmax == max(np.nanmax(image.get_array()) for _, image in pair)
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes, _ in maps}) == 1
    assert "from all queries" in maps[0][0].get_title(loc="left")
    assert "from the 16 newest queries" in maps[1][0].get_title(loc="left")


def test_several_traces_without_compare_get_figures_of_their_own(unpainted, trace, causal_trace, tmp_path):
    names = [path.name for path in draw_figures([trace, causal_trace], tmp_path, only=OLDER) if path.suffix == ".png"]
    assert names == [f"{name}-{model}.png" for model in ("org-planted", "my-llama") for name in FILES]


def test_autoregressive_figures_follow_the_newest_queries(causal_trace, compared):
    rows = rows_of(compared.folder, FILES[3], model="my-llama", layer=MOVING[0], head=MOVING[1])
    positions = {int(row["position"]) for row in rows if row["position"]}
    assert positions == {3, 13}, "the running sum stands at 3 throughout"
    head = rows_of(compared.folder, FILES[0], model="my-llama", panel="head", step=CAUSAL_STEPS - 1, position=13)
    newest = causal_trace.last_query[-16:, MOVING[0], MOVING[1]]
    assert float(head[0]["percent_of_attention"]) == pytest.approx(100 * newest[:, 13].sum() / mean_rows(causal_trace), rel=1e-4)
    strengths = rows_of(compared.folder, FILES[2], model="my-llama", layer=MOVING[0], head=MOVING[1])
    assert float(strengths[0]["mean_main_sink_column_sum"]) == 8


def mean_rows(trace):
    """What the newest queries' rows sum to, mean over heads (planted rows need not sum to one)."""
    return trace.last_query[-16:].sum(axis=(0, 3)).mean()


def test_one_step_without_a_sink_is_drawn_and_says_so(tmp_path):
    trace = write_trace(tmp_path / "flat", np.ones((1, LAYERS, HEADS, POSITIONS), np.float32))
    figures = draw_figures([trace], tmp_path / "out", only=OLDER)
    assert {row["series"] for row in rows_of(tmp_path / "out", FILES[3])} == {"committed"}
    page = write_page([trace], tmp_path / "out", figures=figures).read_text()
    assert "nothing to follow" in page
    assert "no head has a sink by Eq. 3" in page
    numbers = summarise(trace)
    assert (numbers["sinks"], numbers["movement"], numbers["sink_tokens"]) == (0, None, [])


def test_summary_agrees_with_the_whole_trace_in_memory(trace):
    numbers, sinks = summarise(trace), find_sinks(trace)
    tracks = track(sinks)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert (numbers["steps"], numbers["layers"], numbers["heads"]) == (STEPS, LAYERS, HEADS)
    assert numbers["sinks"] == len(sinks) == 3 * STEPS
    assert numbers["selected_share"] == pytest.approx(sinks.selected_share)
    assert numbers["sinks_in_percent_unit"] == is_sink(trace.column_sums[:], 3.0, "percent").sum()
    assert numbers["tracks"] == tracks.kinds
    assert numbers["heads_with_main_sink"] == 3
    assert numbers["movement"]["moves_per_head"] == pytest.approx(np.mean([12, STEPS - 1, 0]))
    assert numbers["movement"]["drift_per_step"] == pytest.approx(np.mean([h.drift_per_step for h in tracks.heads if h.steps_with_sink]))
    null = numbers["movement"]["null_drift"]
    assert null["low"] <= null["mean"] <= null["high"]


def test_summary_counts_sink_tokens_beside_their_share_of_the_canvas(trace):
    sinks, tokens = find_sinks(trace), trace.tokens[:]
    expected, canvas = Counter(sinks.token.tolist()), Counter(tokens.ravel().tolist())
    found = {row["token"]: row for row in summarise(trace)["sink_tokens"]}
    assert {token: row["sinks"] for token, row in found.items()} == expected
    for token, row in found.items():
        assert row["share_of_canvas"] == pytest.approx(canvas[token] / tokens.size)
        assert row["share_of_sinks"] == pytest.approx(expected[token] / len(sinks))
        assert row["times_expected"] == pytest.approx(row["share_of_sinks"] / row["share_of_canvas"])
    assert found[MASK]["text"] == "[M]"


def test_the_threshold_asked_for_is_used(trace):
    assert summarise(trace, excess=8.5)["sinks"] == len(find_sinks(trace, excess=8.5)) == STEPS
    drawn = main_sink_positions([digest(trace, excess=8.5)])
    assert {row[1] for row in drawn.rows} == {"most positions and most static", "committed"}


def test_reading_is_a_layer_at_a_time(trace, tmp_path, monkeypatch):
    read, plain_read = [], TraceArray.__getitem__

    def spy(self, index):
        array = plain_read(self, index)
        if self.name == "column_sums":
            read.append(array.size)
        return array

    monkeypatch.setattr(TraceArray, "__getitem__", spy)
    for draw in FIGURES.values():
        draw([digest(trace)])
    write_page([trace], tmp_path)
    assert max(read) == STEPS * HEADS * POSITIONS


def test_labels_of_tokens_and_models(trace, causal_trace):
    assert [token_label(trace, token) for token in range(5)] == ["[M]", "↵", "<script>alert('x')</script>", "␣Tom", "$x$"]
    assert [tick_label(trace, token) for token in (2, 3, 6)] == ["<script>…", "Tom", "a very l…"]
    assert token_label(trace, -1) == ""
    assert (model_label(trace.manifest), model_label(causal_trace.manifest)) == ("org/planted", "my-llama")
    assert plain("$x$ 漢") == r"\$x\$ ▯"


class Page(HTMLParser):
    """What of a page matters here: whether its elements nest, and what it would load."""

    void = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.loads, self.tags, self.text = [], [], [], Counter(), ""
        self.feed(text)
        self.close()
        self.faults += self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.loads += [value for key, value in attrs if key in ("src", "href", "srcset", "data", "poster", "action")]
        self.faults += [f"{tag} has {key} twice" for key, count in Counter(key for key, _ in attrs).items() if count > 1]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.faults.append(f"</{tag}>")

    def handle_data(self, data):
        self.text += data
        if self.open[-1:] == ["style"]:
            self.loads += [part for part in data.split() if "url(" in part or part == "@import"]


def test_the_page_check_sees_faults():
    page = Page('<p><b>x</p><img src="https://example.org/x.png" src="y"><style>p { background: url(z) }</style>')
    assert page.faults == ["</p>", "img has src twice", "p", "b"]
    assert page.loads == ["https://example.org/x.png", "y", "url(z)"]


@pytest.fixture(scope="module")
def page(trace, causal_trace, compared):
    table = Table("Hiding <sinks>", ["model", "exact"], [["org/planted", "12 of 50 & more"]], "Fifty problems.")
    command = "sinkscope demo --out demo"
    path = write_page([trace, causal_trace], compared.folder, figures=compared.paths, tables=[table], command=command)
    return SimpleNamespace(path=path, source=path.read_text(), parsed=Page(path.read_text()))


def test_page_stands_alone_and_nests(page, compared):
    assert page.path == compared.folder / "report.html"
    assert page.parsed.faults == []
    assert page.parsed.tags["img"] == len(FILES)
    assert all(value.startswith("data:image/png;base64,") for value in page.parsed.loads)
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert "script" not in page.parsed.tags


def test_page_escapes_what_models_write(page):
    assert "<script" not in page.source
    assert "&lt;script&gt;alert(" in page.source
    assert "Is 1 < 2 & 3 > 2? <b>bold</b>" in page.parsed.text
    assert "5 < 6 & so on" in page.parsed.text
    assert "Hiding <sinks>" in page.parsed.text
    assert "12 of 50 & more" in page.parsed.text


def test_page_shows_the_numbers_and_where_they_come_from(page, trace):
    numbers = summarise(trace)
    text = page.parsed.text
    assert f"{numbers['movement']['moves_per_head']:.2f}" in text
    assert f"({numbers['movement']['null_moves']['low']:.2f} … {numbers['movement']['null_moves']['high']:.2f})" in text
    assert f"{numbers['selected_share']:.2%}" in text
    for expected in ("0123abcd", "llada: length 18, steps 19", "python 3.x", "sinkscope demo --out demo", "12,345", "16 newest queries"):
        assert expected in text
    for name in FILES:
        assert f"({name}.png; the numbers drawn are in the CSV file of the same name)" in text
    assert text.count("What it does not show:") == len(FILES)
    assert "Incomplete" not in text


def test_a_page_calls_a_local_model_by_its_folder_and_says_the_command(tmp_path):
    trace = write_trace(tmp_path / "local", planted_columns()[:3], name="/home/somebody/models/my-llama")
    manifest = json.loads((tmp_path / "local" / "manifest.json").read_text())
    (tmp_path / "local" / "manifest.json").write_text(json.dumps(manifest | {"command": "sinkscope trace my-llama --out local"}))
    page = Page(write_page([open_trace(tmp_path / "local")], tmp_path / "out").read_text())
    assert "my-llama" in page.text and "/home/somebody" not in page.text
    assert "sinkscope trace my-llama --out local" in page.text
    assert trace.manifest["model"]["name"] == "/home/somebody/models/my-llama", "the card keeps the whole"


def test_incomplete_traces_are_marked(tmp_path):
    trace = write_trace(tmp_path / "cut", planted_columns()[:5], complete=False)
    page = Page(write_page([trace], tmp_path / "out" / "cut.html").read_text())
    assert "Incomplete. The generation was cut short; what follows is from the 5 whole steps on disk." in page.text
    assert page.faults == []
    assert digest(trace).heading == "org/planted (incomplete), prompt of 11 tokens"
    assert summarise(trace)["complete"] is False
    assert "[M]" in page.text


def test_a_trace_without_a_whole_step(tmp_path):
    trace = write_trace(tmp_path / "empty", planted_columns()[:0], complete=False)
    page = Page(write_page([trace], tmp_path / "out").read_text())
    assert "There is no whole step on disk, so there are no numbers." in page.text
    assert page.faults == []
    for reads in (summarise, lambda trace: draw_figures([trace], tmp_path / "out")):
        with pytest.raises(TraceError, match="holds no whole step yet"):
            reads(trace)


@pytest.mark.parametrize("excess", [float("nan"), float("inf"), -1.0])
def test_a_threshold_that_cannot_hold_is_refused(trace, excess):
    with pytest.raises(CallError, match="excess: expected a finite number from 0 upwards"):
        summarise(trace, excess)


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(CallError, match="expected at least one trace to draw"):
        draw_figures([], tmp_path)
    with pytest.raises(CallError, match="expected at least one trace for the page"):
        write_page([], tmp_path)


def test_a_figure_that_is_not_there_is_refused(trace, tmp_path):
    with pytest.raises(CallError, match=r"no figure at .*gone\.png"):
        write_page([trace], tmp_path, figures=[tmp_path / "gone.png"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(trace, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="cannot be made"):
        draw_figures([trace], tmp_path / "file" / "out")
    with pytest.raises(TraceError, match="cannot be made"):
        write_page([trace], tmp_path / "file" / "out")


def test_import_stays_light():
    code = (
        "import sinkscope.figures, sys; print([m for m in ('torch', 'transformers', 'matplotlib', 'jinja2', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_old_name_of_the_package_warns_and_works():
    with pytest.warns(DeprecationWarning, match=r"sinkscope\.report is now sinkscope\.figures"):
        from sinkscope.report import draw_figures as old
    assert old is draw_figures
