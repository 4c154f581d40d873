"""Writes the files of a tutorial in out/: its picture, its table as JSON, a trace.

    write("12_trace.json", save)               save(path) writes out/12_trace.json
    picture(t, args, draw, *data)              rank 0 draws out/<script>.png with draw(plt, *data).
                                               With --every-language, rank 0 also writes
                                               out/en/<script>.png and out/zh/<script>.png
    heat_map(axes, ledger.matrix())            shows how much each rank sent to every other rank
    lanes(axes, ["compute", "send"], spans)    shows when each lane was busy
    line_at(axes, "theory", y=16)              draws a dashed line and its name
    box, arrow                                 draw the parts of a graph

Test: tests/course/test_tutorial.py, tests/comm/observe/test_ledger.py   Tutorial: all of them
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from minidl.course import language as languages
from minidl.text import language, tr


def script_of(fn):
    """Returns the path of the script that defines `fn`, in the form that a user types."""
    file = sys.modules[fn.__module__].__file__
    near = os.path.relpath(file)
    return file if near.startswith("..") else near


def write(name, save):
    """Writes the file out/<name>. Returns the path of the file, or None.

    save: a function; save(path) writes the file. Another run may write the same file at the same
    time. So each run saves the file in its own folder, and then moves the file to out/. The file in
    out/ is always complete. If the file cannot be written, prints a message and returns None. The
    script then continues, so that it still prints its table."""
    path = Path("out", name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as own:
            save(Path(own, path.name))
            os.replace(Path(own, path.name), path)
    except OSError as error:
        print(tr(f"Not written: {path} in {os.getcwd()}: {error.strerror or error}. Make room, or "
                 "start the script in a folder where you may write."), file=sys.stderr, flush=True)
        return None
    return path


BLUE, RED, ORANGE, GREEN, GREY = "#08306b", "#cb181d", "#e6550d", "#31a354", "#737373"
PALE_BLUE, PALE_ORANGE = "#deebf7", "#fff5eb"
LINES = ["#3182bd", GREEN, ORANGE, "#756bb1", "#969696"]  # for a picture that names no colours

# for a lecture slide: large text, no box around the data
STYLE = {"font.size": 12, "axes.titlesize": 13, "axes.spines.top": False,
         "axes.spines.right": False, "axes.prop_cycle": f"cycler(color={LINES})",
         "lines.linewidth": 2, "legend.frameon": False, "figure.constrained_layout.use": True}


def picture(t, args, draw, *data):
    """Rank 0 calls `draw(plt, *data)`, which returns a figure. Then rank 0 saves the figure as
    out/<script>.png.

    A Jupyter notebook also shows the figure below the cell.

    args: the script's options. With --slides and --every-language, more files are written. data:
    the arguments of `draw` after plt. plt is the module matplotlib.pyplot."""
    if t.rank > 0:
        return
    if importlib.util.find_spec("matplotlib") is None:
        print(tr("No picture: matplotlib is not installed (pip install 'minidl[tutorials]')."))
        return
    import matplotlib

    if not in_notebook():
        matplotlib.use("Agg")  # draw into a file, not a window: there may be no display
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE | labels_in(language())):
        figure = draw(plt, *data)
        translate(figure)
        path = write(Path(script_of(draw)).stem + ".png", partial(figure.savefig, dpi=150))
        if args.slides:
            slides(figure, Path(script_of(draw)).stem)
        plt.close(figure)
    if path:
        print(tr(f"picture: {path}"), flush=True)
    if args.every_language:
        for name in languages.LANGUAGES:
            in_its_language(name, plt, draw, *data)
    if path and in_notebook():
        from IPython.display import Image, display

        display(Image(filename=str(path)))


def in_its_language(name, plt, draw, *data):
    """Draws the picture with labels in the language `name`, such as "zh", from the same data.
    Writes it as out/<name>/<script>.png, for the site.

    Does nothing if the tutorial has no text in this language, or if no installed font has its
    characters."""
    script = Path(script_of(draw)).stem
    with languages.spoken(name):
        if name != "en" and not (languages.texts(script[:2]) and font_of(name)):
            return
        with plt.rc_context(STYLE | labels_in(name)):
            figure = draw(plt, *data)
            translate(figure)
            write(f"{name}/{script}.png", partial(figure.savefig, dpi=150))
            plt.close(figure)


POINTS = 16  # the size of a slide's text, which must be readable from the last row


def slides(figure, name):
    """Writes out/slides/<name>-1.png and <name>-1.svg, then <name>-2 and so on. Each slide shows
    at most two of the figure's panels, with larger text.

    The figure grows by the same factor as its text, so panels and text keep their places."""
    from matplotlib.text import Text

    factor = POINTS / STYLE["font.size"]
    figure.set_size_inches(figure.get_size_inches() * factor)
    for text in figure.findobj(Text):
        text.set_fontsize(max(POINTS, text.get_fontsize() * factor))
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    whole = figure.get_size_inches()
    grids = {axes.get_subplotspec().get_gridspec() for axes in panels if axes.get_subplotspec()}
    grids = {grid: (grid.get_width_ratios(), grid.get_height_ratios()) for grid in grids}
    for number, first in enumerate(range(0, len(panels), 2), 1):
        shown = panels[first : first + 2]
        # the subfigures with the shown panels; they also contain colour bars and titles
        homes = {axes.get_figure() for axes in shown}
        for axes in figure.axes:
            of_both = axes not in panels and axes.get_figure() in homes
            axes.set_visible(axes in shown or of_both)
        for text in (text for part in figure.subfigs for text in part.texts):
            text.set_visible(text.get_figure() in homes)
        _own_numbers(shown[0], shown[-1])
        # _room returns the fractions of width and height that are still used. The figure keeps
        # their square roots, which are larger, so that a wide text still fits.
        figure.set_size_inches(whole * np.sqrt(_room(grids, shown)))
        for kind in "png", "svg":
            file = f"slides/{name}-{number}.{kind}"
            if path := write(file, partial(figure.savefig, dpi=150, bbox_inches=_around(figure))):
                print(tr(f"slide: {path}"), flush=True)


def _room(grids, shown):
    """Makes a column or a row of a grid very small if it has no panel that is shown.

    Returns [width, height]: the fractions of the figure's width and of its height that are still
    used. If there are several grids, returns the smallest fractions.

    grids: {grid: (width of each column, height of each row)}. shown: the panels that are shown."""
    left = [1, 1]
    for grid, ratios in grids.items():
        specs = [axes.get_subplotspec() for axes in shown if axes.get_subplotspec()]
        specs = [spec for spec in specs if spec.get_gridspec() is grid]
        used = [{c for spec in specs for c in spec.colspan},
                {r for spec in specs for r in spec.rowspan}]
        set_ratios = grid.set_width_ratios, grid.set_height_ratios
        for i in (0, 1) if specs else ():
            kept = [r if at in used[i] else 1e-6 * r for at, r in enumerate(ratios[i])]
            set_ratios[i](kept)
            left[i] = min(left[i], sum(kept) / sum(ratios[i]))
    return left


def _own_numbers(first, last):
    """Shows the numbers and the label of a shared x axis on the panel `last`. Does the same for a
    shared y axis on the panel `first`. In the whole figure another panel may have these numbers,
    and that panel may be hidden."""
    alike = last.get_shared_x_axes().get_siblings(last)
    if len(alike) > 1:
        last.tick_params(labelbottom=True)
        last.set_xlabel(max((axes.get_xlabel() for axes in alike), key=len))
    alike = first.get_shared_y_axes().get_siblings(first)
    if len(alike) > 1:
        first.tick_params(labelleft=True)
        first.set_ylabel(max((axes.get_ylabel() for axes in alike), key=len))


def _around(figure):
    """Returns the smallest rectangle around everything that is visible, in inches. matplotlib's own
    rectangle, "tight", also contains empty subfigures."""
    from matplotlib.transforms import Bbox

    for _ in range(2):  # the first layout still uses the sizes of the previous slide
        figure.draw_without_rendering()
    texts = [text for part in (figure, *figure.subfigs) for text in part.texts]
    seen = [artist.get_tightbbox() for artist in (*figure.axes, *texts) if artist.get_visible()]
    return Bbox.union(seen).transformed(figure.dpi_scale_trans.inverted()).padded(0.15)


# fonts of Linux, macOS and Windows, in this order
CHINESE = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei",
           "WenQuanYi Micro Hei", "PingFang SC", "Heiti SC", "Microsoft YaHei", "SimHei")


def font_of(language):
    """Returns the first installed font that has the characters of a language, or None."""
    from matplotlib import font_manager

    fonts = font_manager.fontManager
    if not {font.name for font in fonts.ttflist} & set(CHINESE):  # look for newly installed fonts
        for path in {*font_manager.findSystemFonts()} - {font.fname for font in fonts.ttflist}:
            with suppress(RuntimeError, OSError, ValueError):  # not a font that matplotlib can read
                fonts.addfont(path)
    known = {font.name for font in fonts.ttflist}
    return "DejaVu Sans" if language == "en" else next((n for n in CHINESE if n in known), None)


def labels_in(language):
    """Returns matplotlib's settings with the font for a picture's labels. Returns {} for English
    labels."""
    if language == "en":
        return {}
    if (font := font_of(language)) is None:
        print(tr("The picture's labels stay English: no Chinese font is installed, such as "
                 "Noto Sans CJK (sudo apt install fonts-noto-cjk)."), flush=True)
        return {}
    return {"font.family": [font, "DejaVu Sans"], "axes.unicode_minus": False}


def translate(figure):
    """Translates a figure's labels, if matplotlib's font has the characters of the language."""
    from matplotlib import rcParams
    from matplotlib.text import Text

    if set(rcParams["font.family"]) & set(CHINESE):
        for label in figure.findobj(Text):
            label.set_text(tr(label.get_text()))
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            # When matplotlib draws, it makes the labels of ticks again. So set_ticks must get the
            # translations.
            words = [label.get_text() for label in axis.get_ticklabels()]
            if list(map(tr, words)) != words:
                axis.set_ticks(axis.get_ticklocs(), [*map(tr, words)])


def in_notebook():
    """Returns True in a Jupyter kernel, which shows pictures."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def line_at(axes, text, *, x=None, y=None, at=1.0, color=RED):
    """Draws a dashed line at x or at y, with its text next to it. at: the place of the text along
    the line, from 0 to 1."""
    style = {"color": color, "linestyle": "--", "linewidth": 1.2}
    if y is None:
        axes.axvline(x, **style)
        place, along, side, gap = (x, at), axes.get_xaxis_transform(), "left", (4, 2)
    else:
        axes.axhline(y, **style)
        side, gap = ("right" if at > 0.5 else "left"), (0, 2)
        place, along = (at, y), axes.get_yaxis_transform()
    axes.annotate(text, place, gap, xycoords=along, textcoords="offset points", color=color,
                  fontsize=11, ha=side, va="bottom")


def lanes(axes, names, spans):
    """Shows when each lane is busy. Each (lane, start, end, color) in `spans` is a bar.

    Lane 0 is on top. Its name is names[0]."""
    for lane, start, end, color in spans:
        axes.barh(lane, end - start, 0.72, start, color=color, edgecolor="white", linewidth=0.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def box(axes, x, y, text, face="white", shape="square", **style):
    """Draws a text in a frame. The middle of the frame is at (x, y)."""
    frame = {"boxstyle": f"{shape},pad=0.35", "facecolor": face, "edgecolor": BLUE}
    axes.text(x, y, text, bbox=frame, ha="center", va="center", **style)


def arrow(axes, start, end, color=BLUE, style="-|>", **options):
    """Draws an arrow from one point to another. options: for matplotlib's arrowprops."""
    axes.annotate("", end, start, arrowprops={
        "arrowstyle": style, "color": color, "lw": 1.6, "shrinkA": 0, "shrinkB": 0, **options})


def heat_map(axes, sent, top=None, node_size=None):
    """Draws how much rank i (row) sent to rank j (column). Returns the cells, for a colour bar.

    sent: an array (n, n), such as `ledger.matrix()`. top: the value of the darkest colour. The
    default is the largest value. node_size: the number of ranks on a node. Each node gets a grey
    square."""
    n, top = len(sent), sent.max() if top is None else top
    cells = axes.pcolormesh(np.ma.masked_equal(sent, 0), cmap="YlGnBu", vmin=0, vmax=top,
                            edgecolors="white")
    for (src, dst), value in np.ndenumerate(sent if n <= 8 else sent[:0]):
        if value:
            color = "white" if value > 0.55 * top else "black"
            place = {"ha": "center", "va": "center", "fontsize": 9}
            axes.text(dst + 0.5, src + 0.5, _short(value), color=color, **place)
    for first in range(0, n, node_size or n):
        end = first + (node_size or n)
        square = [first, end, end, first, first], [first, first, end, end, first]
        axes.plot(*square, color="#969696", linewidth=1)
    every = range(0, n, max(1, n // 8))
    for set_ticks in axes.set_xticks, axes.set_yticks:
        set_ticks([i + 0.5 for i in every], every)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(aspect="equal", xlim=(0, n), ylim=(n, 0), xlabel="to rank", ylabel="from rank")
    return cells


def _short(value):
    """Returns "1.54M" for 1536000 and "0.75" for 0.75."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
