"""The README shows only what runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md"])
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert names["path"].status.kind == "blow-up"
    assert names["block"].observed["mean"].values.shape == (100, 3)
    assert len(names["stack"]) == 13


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
