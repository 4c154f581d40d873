"""The HTML page in a real browser, and the picture."""

import re
import shutil
import subprocess

import pytest

from minidl.profile import trace
from tests.profile import cases

BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
browser = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def profile():
    return cases.hundred_steps()


def test_the_page_needs_no_network(profile, tmp_path):
    profile.html(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert not re.search(r"https?:|src=|href=|@import|fetch\(|XMLHttp", text)
    assert text.count("<script") == 2 and text.count("</script>") == 2


def test_a_name_cannot_end_the_script(tmp_path):
    import minidl
    with minidl.profile() as p, p.span("</script><b>"):
        pass
    p.html(tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text().count("</script>") == 2


@pytest.mark.slow
@pytest.mark.skipif(not browser, reason="no Chromium: apt-get install chromium")
def test_4_ranks_times_100_steps_load_in_a_browser(profile, tmp_path):
    profile.html(tmp_path / "p.html")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/u",
         "--virtual-time-budget=10000", "--window-size=1400,900", "--dump-dom",
         f"file://{tmp_path}/p.html"], capture_output=True, text=True, timeout=100)
    n_spans = sum(e["ph"] == "X" for e in trace.events(profile.ranks))
    assert f'data-drawn="{n_spans}"' in done.stdout, done.stderr[-2000:]
    assert "a step, the mean of 99 on 4 ranks" in done.stdout


def test_the_picture_has_a_lane_for_each_rank_and_a_roofline(profile, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    monkeypatch.setitem(profile.summary, "peak", {"float32": 1e11, "float64": 5e10,
                                                  "bandwidth": 1e10})
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: (
        drawn.append(figure), save(figure, *args, **options | {"dpi": 40})))
    profile.picture(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    lanes, roofline = drawn[0].axes
    names = [tick.get_text() for tick in lanes.get_yticklabels()]
    assert [name for name in names if name.startswith("rank")] == [f"rank {r}" for r in range(4)]
    (line,) = [line for line in roofline.lines if line.get_linestyle() == "-"]
    assert max(line.get_ydata()) == 100  # GFLOP/s: the roof
    names = {text.get_text() for text in roofline.get_legend().get_texts()}
    assert names == {"linear forward", "linear backward"}
