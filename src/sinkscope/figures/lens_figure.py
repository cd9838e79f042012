"""The figure of `sinkscope lens`, drawn from its JSON document."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sinkscope.counts import counted
from sinkscope.figures import style
from sinkscope.figures.figure import DrawnFigure, Row

LOOKS = {"sink": (style.VERMILLION, "s", "sinks"), "match": (style.BLUE, "o", "matched positions without a sink")}
HEADER = ("model", "place", "kind", "number", "layer", "mean", "low", "high")


def draw_lens(document: Mapping[str, Any]) -> DrawnFigure:
    """Draw a column for each place with sinks; rows: entropy, KL to the final prediction, agreement with the text."""
    predicts = document["predicts"]
    what = "its own token" if predicts == "here" else "the next token"
    panels = (
        ("entropy", "entropy, nats"),
        ("kl", "KL(final ‖ lens), nats"),
        (f"agreement.{predicts}", f"top token is finally\n{what}, share"),
    )
    found = {(one["place"], one["kind"]): one for one in document["groups"]}
    places, rows = list(dict.fromkeys(place for place, _ in found)), list[Row]()
    with style.figure_style(wide=len(places) > 1):
        sheet = style.new_sheet(style.WIDER if len(places) > 1 else style.WIDE, 6.6)
        grid = sheet.subplots(len(panels), max(1, len(places)), squeeze=False, sharex=True, sharey="row")
        for place, column in zip(places, grid.T, strict=False):
            for kind, (colour, marker, label) in LOOKS.items():
                group = found[place, kind]
                for (number, _), axes in zip(panels, column, strict=True):
                    ends = [group["by_layer"][number][end] for end in ("mean", "low", "high")]
                    mean, low, high = values = np.array(ends, float)
                    style.curve(axes, mean, colour, marker, label)
                    axes.fill_between(range(len(mean)), low, high, color=colour, alpha=0.2, linewidth=0)
                    cells = [[style.number(one) if np.isfinite(one) else "" for one in row] for row in values.T]
                    rows += [(document["model"], place, kind, number, at, *cell) for at, cell in enumerate(cells)]
            column[0].set_title(f"{place}: {counted(found[place, 'sink']['positions'], 'pair')}")
            column[-1].set_xlabel("layer")
            style.whole_numbers(column[-1].xaxis)
        for (_, label), axes in zip(panels, grid[:, 0], strict=True):
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        handles, labels = grid[0][0].get_legend_handles_labels()
        sheet.legend(handles, labels, loc="outside lower center", ncols=2)
        style.say(sheet, document["headline"])
    lens = "tuned lens" if document["tuned"] else "logit lens"
    caption = (
        f"What the residual stream behind each layer of {document['model']} predicts by the {lens}, at main sinks and "
        f"at matched positions, over {document['canvases']} canvases; bands are 95 % intervals over "
        f"{document['over']}. What it does not show: what other positions take from a sink."
    )
    return DrawnFigure("lens", f"Lens ({document['model']})", caption, sheet, HEADER, rows)
