"""Figures: the papers' figures from your own traces, their numbers, and a page that holds both."""

from sinkscope.figures.counts import Counts, open_counts
from sinkscope.figures.drawing import draw_figures, find_figures, make_folder
from sinkscope.figures.figure import DrawnFigure, Figure
from sinkscope.figures.heatmap import single_map
from sinkscope.figures.page import Table, write_page
from sinkscope.figures.page_numbers import summarise
from sinkscope.figures.subject import FigureError, Subject

__all__ = [
    "Counts",
    "DrawnFigure",
    "Figure",
    "FigureError",
    "Subject",
    "Table",
    "draw_figures",
    "find_figures",
    "make_folder",
    "open_counts",
    "single_map",
    "summarise",
    "write_page",
]
