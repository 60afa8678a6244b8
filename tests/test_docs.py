"""The README and the docs show only what runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(page, folder, monkeypatch):
    """What the python blocks of a page leave behind, run in order in an empty folder."""
    monkeypatch.chdir(folder)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_the_choice_of_sums(tmp_path, monkeypatch):
    names = run("docs/how-to-choose.md", tmp_path, monkeypatch)
    assert abs(names["rate"](names["mu"].points) - names["exact"]).max() < 1e-9


def test_the_readme(tmp_path, monkeypatch):
    names = run("README.md", tmp_path, monkeypatch)
    assert names["path"].status.kind == "blow-up"
    assert names["block"].observed["mean"].values.shape == (100, 3)
    assert len(names["stack"]) == 13
    assert abs(names["grown"].final.mass.sum() - 1) < 1e-13
    assert names["noisy"].final.density.max() < 0.17 < names["grown"].final.density.max()
    assert abs(names["bridge"].score(names["x"]) - names["law"].score(names["x"])).max() < 0.06
    assert abs(names["heat"].final.cov - 6).max() < 1e-3
    assert len(names["stairs"].log_times) == 4
    assert names["mean"]["order"].shape == (3, 11)


def test_the_page_on_densities(tmp_path, monkeypatch):
    names = run("docs/densities.md", tmp_path, monkeypatch)
    assert names["gap"] < 0.02
    assert abs(names["back"].mean - names["tokens"].mean).max() < 1e-12
    assert names["noisy"].cov[0, 0] > names["density"].cov[0, 0]


def test_the_page_on_long_times(tmp_path, monkeypatch):
    names = run("docs/long-time.md", tmp_path, monkeypatch)
    assert abs(names["stairs"].log_times[-1] - 7460) < 1
    assert abs(names["stairs"].log_times[0] - names["first"]) < 0.01
    assert (names["pre"].points ** 2).sum(axis=1).min() > 1


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
