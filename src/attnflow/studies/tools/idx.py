"""Labeled images from IDX files, the format of MNIST: big-endian header, then bytes; plain or gzipped."""

import gzip
import math
import pathlib

import numpy as np
from jaxtyping import UInt8

from attnflow.studies.tools.check import BadInput

# Where Debian's package dataset-fashion-mnist puts the files.
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def labeled(folder: pathlib.Path | None = None) -> tuple[UInt8[np.ndarray, "n h w"], UInt8[np.ndarray, " n"]]:
    """The training images of a folder, and their labels; by default those of FashionMNIST as Debian installs them."""
    place = FASHION if folder is None else folder
    images, labels = (read(_find(place, name), axes) for name, axes in ((IMAGES, 3), (LABELS, 1)))
    if len(images) != len(labels):
        raise BadInput(f"images and labels must be as many, got {len(images)} and {len(labels)} in {place}")
    return images, labels


def read(file: pathlib.Path, axes: int) -> UInt8[np.ndarray, "..."]:
    """An array of bytes with so many axes. The header is two zero bytes, 8 for unsigned bytes, the number of axes, the length of each."""
    content = file.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, ValueError) as error:
            raise BadInput(f"{file} is a damaged gzip file: {error}") from error
    start = 4 + 4 * axes
    if content[:4] != bytes([0, 0, 8, axes]):
        raise BadInput(
            f"{file} is no IDX file of bytes with {axes} axes: it must begin with {bytes([0, 0, 8, axes]).hex()}, got {content[:4].hex()!r}"
        )
    shape = tuple(np.frombuffer(content[4:start].ljust(4 * axes, b"\0"), ">u4").tolist())
    if len(content) - start != math.prod(shape) or 0 in shape:
        raise BadInput(f"{file} must hold {' x '.join(map(str, shape))} bytes after its header, got {max(len(content) - start, 0)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise BadInput(
        f"no {name} in {folder}; install Debian's package (apt-get install dataset-fashion-mnist), "
        f"or name a folder with {IMAGES} and {LABELS}, plain or .gz, by --data"
    )
