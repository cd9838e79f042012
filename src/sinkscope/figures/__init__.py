"""Draws the papers' figures from your own traces, and writes a page with the figures and their numbers."""

from sinkscope.figures.figure import DrawnFigure, Figure, draw_figure, draw_figures, find_figures
from sinkscope.figures.page import page_numbers, write_page
from sinkscope.figures.panels import attention_map, incoming, sink_positions, sink_strengths, token_column
from sinkscope.figures.subject import FigureError, OpenedStatistics, Subject, open_statistics

__all__ = [
    "DrawnFigure",
    "Figure",
    "FigureError",
    "OpenedStatistics",
    "Subject",
    "attention_map",
    "draw_figure",
    "draw_figures",
    "find_figures",
    "incoming",
    "open_statistics",
    "page_numbers",
    "sink_positions",
    "sink_strengths",
    "token_column",
    "write_page",
]
