"""The page of a run: all of it, in one file that asks for nothing outside, and how a browser shows it."""

import dataclasses
import html
import html.parser
import pathlib
import re
import shutil
import subprocess
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow import ledger
from attnflow.report.page import page

VOID = {"meta", "link", "img", "br"}


class Reader(html.parser.HTMLParser):
    """Checks that tags close in order, and gathers what a page asks for."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.asked += [(tag, value or "") for name, value in attrs if name in ("src", "href", "srcset", "poster", "data", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def record(**changed) -> dict:
    claims = [
        {
            "id": "fake/a",
            "statement": "Means are <b>near</b> 1/2 & no less.",
            "source": "arXiv:0000.00001",
            "status": "proved",
            "printed": "",
        },
        {
            "id": "fake/b",
            "statement": r"It falls like $e^{-2t \lvert x \rvert^2}$ and $n^{-1/2}$.",
            "source": "arXiv:0000.00002",
            "status": "misprint",
            "printed": '$e^{-t}$, "half as fast"',
        },
        {"id": "fake/c", "statement": "Nobody looked.", "source": "arXiv:0000.00003", "status": "conjectured", "printed": ""},
    ]
    for claim, verdict in zip(claims, ("holds", "fails", "not measured")):
        claim |= {"verdict": verdict, "checks": 1, "shown": None}
    checks = [
        {"name": "mean", "measured": 0.49, "expected": 0.5, "tolerance": 0.1, "claim": "a", "used": 1e-4, "ok": True},
        {
            "name": "rate <script>alert(1)</script>",
            "measured": None,
            "expected": -2.0,
            "tolerance": 1e-3,
            "claim": "b",
            "used": None,
            "ok": False,
        },
    ]
    return {
        "study": "fake",
        "title": "A title with <tags> & $e^{-t}$ (arXiv:0000.00001).",
        "command": "attnflow run fake --name '<&>' --out a-folder-" + "with-a-long-name-" * 12,
        "parameters": {"n": 40, "eps": 0.125, "spec": {"law": [{"temperature": 0.25}, {"temperature": 0.5}]}, "word": "x" * 200},
        "measured": {"means": list(range(40)), "solver": {"steps": 7}, "lost": None},
        "versions": {"attnflow": af.__version__, "jax": "0.0"},
        "machine": "Linux x86_64",
        "seconds": 1.5,
        "claims": claims,
        "checks": checks,
    } | changed


def everything() -> dict:
    """A page with every claim and the checks shown for them, which no study has."""
    claims = [dataclasses.asdict(entry) for entry in ledger.recorded()]
    return record(claims=claims, checks=[claim["shown"] | {"ok": True} for claim in claims if claim["shown"]])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> pathlib.Path:
    """A page with a figure and a movie."""
    folder = tmp_path_factory.mktemp("page")
    figure = af.plot.new_figure(7.0, 3.0)
    figure.add_subplot().plot([0, 1, 0], color=af.plot.COLORS[0], linewidth=6)
    figure.savefig(folder / "figure.png")
    mu = af.Particles(np.eye(3), space=af.Sphere())
    states = jnp.stack([jnp.eye(3)] * 2)
    af.plot.movie(af.Path(jnp.arange(2.0), states, af.Status("reached", 1.0), {}, mu), folder / "movie.mp4")
    for name, content in {"report": record(), "everything": everything()}.items():
        (folder / f"{name}.html").write_text(page(content, [folder / "figure.png"], [folder / "movie.mp4"]), encoding="utf-8")
    return folder / "report.html"


def test_the_page_is_one_well_formed_file_that_asks_for_nothing_outside(written):
    text = written.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    asked = Reader(text).asked
    assert {tag for tag, _ in asked} == {"img", "video", "link"}
    assert all(value.startswith("data:") for _, value in asked)
    assert not re.search(r"url\(|@import|<script|<iframe|<object", text)


def test_the_page_says_all_and_escapes_it(written):
    text = written.read_text(encoding="utf-8")
    said = Reader(text).text
    given = record()
    for words in (
        "A title with <tags> & e−t",
        "1 of 2 checks fail",
        "Means are <b>near</b> 1/2 & no less.",
        'printed: e−t, "half as fast"',
        "misprint",
        "< 0.1 %",
        "not measured",
        "rate <script>alert(1)</script>",
        "not finite",
        given["command"],
        "spec.law.1.temperature0.5",
        "solver.steps7",
        "eps0.125",
        "Linux x86_64",
        "... (40)",
    ):
        assert words in said, words
    assert "<script" not in text
    powers = [ElementTree.fromstring(formula) for formula in re.findall("<math>.*?</math>", text)]
    assert ["".join(one.itertext()) for one in powers] == ["e−t", "e−2t|x|2", "n−1/2", "e−t"]
    assert all(one.find("mrow/msup") is not None for one in powers), "powers are raised"
    assert 'alt="A title with &lt;tags&gt; &amp; e^{-t} (arXiv:0000.00001).: figure"' in text, "where no formula can be, there are letters"


def test_what_there_is_none_of_is_left_out():
    checks = [check for check in record()["checks"] if check["ok"]]
    said = Reader(page(record(checks=checks, claims=[], measured={}), [], [])).text
    assert "all 1 checks hold" in said
    assert "Claims" not in said
    assert "Measured" not in said
    assert "nothing to check" in Reader(page(record(checks=[], claims=[]), [], [])).text


@pytest.mark.parametrize("title", ["The simulation a$b.toml", "$", r"$\frac{1$", "$x_$ <b>"])
def test_a_title_may_hold_anything(title):
    assert title in Reader(page(record(title=title), [], [])).text


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
browser = pytest.mark.skipif(BROWSER is None, reason="no chromium")


def shown(address: str, *options: str) -> subprocess.CompletedProcess:
    """What a browser makes of a page."""
    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    return subprocess.run([*words, "--enable-logging=stderr", "--v=0", *options, address], capture_output=True, text=True, timeout=120)


FRAME = """<!doctype html><title>wait</title><iframe src="{name}.html" style="width: {width}px; height: 844px; border: 0"></iframe><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument
  const image = page.images[0], film = page.querySelector("video")
  const wide = [...page.querySelectorAll("body *")].filter((part) => part.getBoundingClientRect().right > {width} + 0.5 &&
    !part.closest("pre, .scroll")).map((part) => part.tagName)
  document.title = [page.documentElement.scrollWidth, image.complete, image.naturalWidth, film.error, wide.join("+")].join(" ")
}})</script>"""


@browser
@pytest.mark.parametrize("name", ["report", "everything"])
@pytest.mark.parametrize("width", [320, pytest.param(390, marks=pytest.mark.long), 1280])
def test_a_browser_shows_the_page_without_errors_and_within_its_width(written, width, name):
    frame = written.with_name(f"frame-{name}-{width}.html")
    frame.write_text(FRAME.format(width=width, name=name))
    done = shown(frame.as_uri(), "--dump-dom", "--allow-file-access-from-files")
    assert "CONSOLE" not in done.stderr
    (title,) = re.findall("<title>(.*?)</title>", done.stdout)
    scroll, complete, natural, error, wide = title.split(" ")
    assert int(scroll) <= width, "no scrolling to the side"
    assert (complete, natural, error) == ("true", "2100", ""), "the image is decoded and the movie has no error"
    assert wide == "", "nothing sticks out"


@browser
def test_the_screen_is_not_blank(written):
    import matplotlib.image

    done = shown(written.as_uri(), f"--screenshot={written.with_name('screen.png')}", "--window-size=390,844")
    assert "CONSOLE" not in done.stderr
    pixels = matplotlib.image.imread(written.with_name("screen.png"))[..., :3]
    dark = (pixels.mean(axis=2) < 0.5).mean()
    assert 0.005 < dark < 0.5
    # The line of the figure has the first color of the look.
    blue = np.array([0x00, 0x72, 0xB2]) / 255
    assert (np.abs(pixels - blue).max(axis=2) < 0.1).sum() > 50
