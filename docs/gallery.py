"""The figures of the gallery, docs/images/gallery/STUDY.png, small enough for a page.

python docs/gallery.py                  every study, run at its fast size
python docs/gallery.py heat circle      some
python docs/gallery.py --results DIR    from DIR/STUDY, the folders that `attnflow claims --run --out DIR` writes, where they exist
"""

import argparse
import io
import pathlib
import sys
import time

from PIL import Image

from attnflow.cli.options import configure
from attnflow.studies import BadInput, figures, studies

IMAGES = pathlib.Path(__file__).parent / "images" / "gallery"
MOST, WIDTH = 150_000, 1100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help="which ones; all if none is named")
    parser.add_argument("--results", type=pathlib.Path, help="a folder with the folders of runs")
    asked = parser.parse_args()
    configure()
    IMAGES.mkdir(parents=True, exist_ok=True)
    missed = 0
    for name, study in studies().items():
        if asked.studies and name not in asked.studies:
            continue
        begun = time.perf_counter()
        try:
            drawn = found(asked.results / name) if asked.results and (asked.results / name).is_dir() else ran(study)
        except (BadInput, ImportError) as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
            missed += 1
            continue
        file = IMAGES / f"{name}.png"
        file.write_bytes(small(drawn))
        print(f"{name}: {file.stat().st_size / 1000:.0f} kB, {time.perf_counter() - begun:.0f} s", flush=True)
    return 1 if missed else 0


def ran(study) -> Image.Image:
    """The first figure of a study at its fast size."""
    figure = next(iter(figures(study, study.run(study.FAST)).values()))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return Image.open(buffer)


def found(folder: pathlib.Path) -> Image.Image:
    """The figure that a run wrote: the one of that name, or the first."""
    images = sorted(folder.glob("*.png"), key=lambda file: (file.stem != "figure", file.name))
    if not images:
        raise BadInput(f"{folder} has no figure")
    return Image.open(images[0])


def small(image: Image.Image) -> bytes:
    """As PNG, no wider than a page, in as few colors and pixels as it takes."""
    image = image.convert("RGB")
    width, colors = min(WIDTH, image.width), 256
    while True:
        sized = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        sized.quantize(colors, dither=Image.Dither.NONE).save(buffer, format="png", optimize=True)
        if buffer.tell() <= MOST:
            return buffer.getvalue()
        width, colors = round(width * 0.85), max(64, colors // 2)


if __name__ == "__main__":
    sys.exit(main())
