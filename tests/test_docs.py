"""The README and the docs show only what runs; formulas are typeset; the site is built without a warning and asks for nothing outside."""

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest
from fontTools.ttLib import TTFont

from attnflow.report.mathematics import mathml

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
SHOWN = [f"{page.relative_to(ROOT)}" for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if BLOCK.search(page.read_text())]
# Pages of more than ten seconds.
LONG = {"README.md", "docs/coming-from.md", "docs/densities.md", "docs/solving.md", "docs/transport.md", "docs/tutorial.md"}


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.long] * (page in LONG)) for page in SHOWN])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """In order, in an empty folder; what they leave behind is looked at if there is something to say of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = jax.config.jax_compilation_cache_dir
    names: dict = {}
    try:
        # As users have it.
        with jax.numpy_rank_promotion("allow"):
            for block in BLOCK.findall((ROOT / page).read_text()):
                exec(compile(block, page, "exec"), names)
    finally:
        # Blocks that call the command line turn the cache on.
        jax.config.update("jax_compilation_cache_dir", cache)
    LOOKS.get(page, lambda names: None)(names)


def of_the_readme(names):
    assert names["path"].status.kind == "reached"
    assert abs(names["blown"].status.time - 0.5) < 1e-6
    assert abs(names["noisy"].final.mass.sum() - 1) < 1e-13


def of_the_choice_of_sums(names):
    assert abs(names["rate"](names["mu"].points) - names["exact"]).max() < 1e-9


def of_densities(names):
    assert names["gap"] < 0.02
    assert abs(names["back"].mean - names["tokens"].mean).max() < 1e-12
    assert names["noisy"].cov[0, 0] > names["density"].cov[0, 0]


def of_long_times(names):
    assert abs(names["stairs"].log_times[-1] - 7460) < 1
    assert abs(names["stairs"].log_times[0] - names["first"]) < 0.01
    assert (names["pre"].points ** 2).sum(axis=1).min() > 1


def of_the_tutorial(names):
    assert names["gaussian"].status.kind == "blow-up"
    assert abs(names["short"].cov[0, 0] - 2) < 1e-5
    assert abs(names["density"].final.mass.sum() - 1) < 1e-13
    assert all(check.ok for check in names["heat"].checks(names["result"]))
    assert names["code"] == 0
    assert {entry.verdict for entry in names["measured"]} == {"holds"}


def of_simulation_files(names):
    assert names["codes"] == [0, 0, 0]
    assert names["refused"] == 2


def of_studies(names):
    assert all(check.ok for check in names["checks"](names["result"]))
    assert names["wrong"]


def of_coming_from(names):
    assert abs(names["path"].final.points - names["looped"]).max() < 0.01
    assert abs(names["stack"].final.points - names["network"]).max() < 1e-12
    assert abs(names["plan"] - names["bridge"].plan()).max() < 1e-9 * names["plan"].max()
    assert abs(names["out"].matrix - names["bridge"].plan()).max() < 1e-8 * names["plan"].max()
    assert abs(names["matrix"] - names["law"].weights(names["tokens"].points, names["tokens"])).max() < 1e-12
    assert abs(names["moved"] - names["ours"].points[:, 0]).max() < 1e-9


def of_sums(names):
    assert abs(names["streamed"] - names["dense"]).max() < 1e-12
    assert abs(names["spectral"] - names["dense"]).max() < 1e-9


def of_solving(names):
    assert (names["again"].states == names["path"].states).all()
    assert names["loaded"].status.kind == names["path"].status.kind


LOOKS = {
    "README.md": of_the_readme,
    "docs/coming-from.md": of_coming_from,
    "docs/densities.md": of_densities,
    "docs/how-to-choose.md": of_the_choice_of_sums,
    "docs/long-time.md": of_long_times,
    "docs/simulation-files.md": of_simulation_files,
    "docs/solving.md": of_solving,
    "docs/studies.md": of_studies,
    "docs/sums.md": of_sums,
    "docs/tutorial.md": of_the_tutorial,
}


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="make docs installs sphinx")
def test_the_site_is_built_without_a_warning_and_asks_for_nothing_outside(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--fresh-env", str(ROOT / "docs"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {page.stem for page in ROOT.glob("docs/*.md")} <= {page.stem for page in pages}
    typeset = {page.stem for page in pages if "<math" in page.read_text()}
    assert {"mathematics", "conventions", "transport", "ledger", "theory", "catalogue"} <= typeset
    assert '<div class="math"><math display="block">' in (tmp_path / "mathematics.html").read_text()
    assert (tmp_path / "_static" / "math.woff").is_file()
    for page in pages:
        text = page.read_text()
        assert not re.search(r"<script[^>]*mathjax", text.lower()), page.name
        assert "$" not in re.sub(r"(?s)<pre.*?</pre>|<code.*?</code>|<script.*?</script>", "", text), (
            f"{page.name} has a formula as it was typed"
        )
        assert not re.findall(r"""<(?:script|img|link|iframe|video|source)\b[^>]*\b(?:src|href)=["'](?:https?:)?//""", text), page.name
        assert "@import" not in text


@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="make docs installs sphinx")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script async src="https://cdn.example/tex.js"></script>'),
        ("a.html", "<img alt='' src='//example.org/a.png'>"),
        ("a.css", '@font-face { font-family: a; src: url("https://example.org/a.woff2") }'),
        ("a.css", "@import '//example.org/a.css';"),
        ("a.js", 'import("https://cdn.example/a.js")'),
    ],
)
def test_a_page_a_style_or_a_script_that_asks_outside_is_refused(name, text, tmp_path):
    conf = loaded("conf")
    built = types.SimpleNamespace(outdir=tmp_path)
    (tmp_path / name).write_text("body { background: url(here.png) } <a href='https://example.org'>a link asks for nothing by itself</a>")
    conf.check_pages(built, None)
    (tmp_path / name).write_text(text)
    with pytest.raises(RuntimeError, match=f"{name} asks for something outside"):
        conf.check_pages(built, None)


def loaded(name):
    """A module of docs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CODE = re.compile(r"^(`{3,}).*?^\1 *$|^:{3,}.*?$|(?<=^\n)(?: {4}.+\n?)+|`[^`]+`", flags=re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", flags=re.DOTALL)
TYPED = re.compile(
    r"integral e\^|double-integral|\bd_t\b|\bgrad (?:log|V)|\bLaplace (?:rho|mu|log)|\bsqrt\(|\b[RS]\^|\w\^[\d{(-]|<[A-Z]?[xy], "
    r"|\bsum_|\bx <- "
)


def test_formulas_of_the_site_can_be_read_and_drawn_and_none_is_left_in_ascii(tmp_path):
    """On the pages, and in the docstrings of which the reference is made; code stays code. The font of the site has all their signs."""
    loaded("api").write(tmp_path / "api")
    formulas = set()
    for page in [*ROOT.glob("docs/*.md"), *(tmp_path / "api").glob("*.md")]:
        prose = CODE.sub("", page.read_text())
        # In the cells of a table a bar is written with a backslash.
        formulas |= {"".join(found).replace(r"\|", "|") for found in FORMULA.findall(prose)}
        left = FORMULA.sub(" ", prose)
        assert "$" not in left, f"{page.name} has a dollar without its pair"
        assert not TYPED.findall(left), f"{page.name} has a formula that is not between dollars"
    assert len(formulas) > 700
    signs = set("".join(text for formula in formulas for text in mathml(formula).itertext()))
    drawn = {chr(code) for code in TTFont(ROOT / "docs" / "_static" / "math.woff").getBestCmap()}
    assert {sign for sign in signs if not sign.isspace()} <= drawn


def test_the_keys_of_simulation_files_are_explained():
    from attnflow.simulate import spec

    page = (ROOT / "docs" / "simulation-files.md").read_text()
    for table in (spec.Particles, spec.Gaussian, spec.Grid, spec.Law, spec.Time, spec.Output, spec.Spec):
        for key in table.__struct_fields__:
            assert f"`{key}`" in page or f"`[{key}]`" in page, f"{table.__name__} has the key {key}"


def test_pages_that_are_linked_exist():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_public_names_have_docstrings():
    import attnflow as af

    ours = {name: getattr(af, name) for name in dir(af) if not name.startswith("_")}
    bare = [n for n, it in ours.items() if getattr(it, "__module__", getattr(it, "__name__", "")).startswith("attnflow") and not it.__doc__]
    assert not bare
