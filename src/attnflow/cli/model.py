"""`attnflow model FOLDER`."""

import json
import pathlib
from typing import Any

from attnflow.cli.options import OUT, RUN, configure, parse
from attnflow.cli.study import perform, typed
from attnflow.studies.tools.check import BadInput

_TEXT = """A prompt through a trained transformer: its tokens, what every layer does to them with nulls beside it, the attention of some
heads, the next token. FOLDER has config.json, *.safetensors and tokenizer.json as Hugging Face writes them, or is an installed package that
has such a folder inside."""


def model_(argv: list[str]) -> int:
    """Read a model, and describe it or look at a prompt."""
    extra = {
        "FOLDER": (str, ..., "the model"),
        "text": (str | None, None, "the prompt"),
        "file": (pathlib.Path | None, None, "a file with the prompt"),
        "image": (pathlib.Path | None, None, "a file with the image, for ViT"),
        "describe": (bool, False, "only say what is in the folder"),
        "heads": (tuple[str, ...], (), "a head whose attention is drawn, as layer.head; may be given again"),
        "angle": (float, 45.0, "tokens whose directions are within this angle, in degrees, are in one cluster"),
        "seed": (int, 0, "of the nulls"),
        "out": (pathlib.Path, pathlib.Path("results", "model"), OUT),
    } | {name: option for name, option in RUN.items() if name != "movie"}
    chosen = parse("attnflow model", _TEXT, argv, extra)
    if chosen is None:
        return 0
    try:
        import attnflow as af

        configure()
        model = af.models.load(chosen.folder)
        if chosen.describe:
            about = dict(model.describe())
            width = max(map(len, about))
            print(json.dumps(about, indent=2) if chosen.json else "\n".join(f"{name:{width}}  {value}" for name, value in about.items()))
            return 0
        said, x = _prompt(chosen)
        model.measure(x)
    except (ValueError, ImportError) as error:
        raise BadInput(error) from error
    return _look(chosen, argv, model, said, x)


def _look(chosen: Any, argv: list[str], model: Any, said: str, x: Any) -> int:
    from attnflow.report.folder import Folder
    from attnflow.simulate.prompt import Prompt, Spec

    try:
        spec = Spec(chosen.folder, said, tuple(chosen.heads), chosen.angle, chosen.seed)
    except ValueError as error:
        raise BadInput(error) from error
    title = f"A prompt through the {model.family} of {pathlib.Path(chosen.folder).name}".replace("$", r"\$")
    folder = Folder(chosen.out, resume=chosen.resume, overwrite=chosen.overwrite)
    return perform("model", Prompt(model, x, title), spec, folder, typed("model", argv), False, chosen.json)


def _prompt(chosen: Any) -> tuple[str, Any]:
    """What the record says of the prompt, and the prompt."""
    given = {name: getattr(chosen, name) for name in ("text", "file", "image") if getattr(chosen, name) is not None}
    if len(given) != 1:
        raise BadInput(f"give one of --text, --file and --image, got {', '.join(f'--{name}' for name in given) or 'none'}")
    ((name, value),) = given.items()
    if name == "text":
        return value, value
    if name == "file":
        text = value.read_text(encoding="utf-8", errors="strict").strip()
        return text, text
    from PIL import Image, UnidentifiedImageError

    try:
        return str(value), Image.open(value)
    except UnidentifiedImageError:
        raise BadInput(f"{str(value)!r} is not an image") from None
