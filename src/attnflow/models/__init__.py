"""Trained transformers as stacks of laws: read from the files of Hugging Face, exact, with every observable of the library on them."""

from attnflow.models.arrays import from_arrays as from_arrays
from attnflow.models.block import Block as Block
from attnflow.models.tokens import NamedTokens as NamedTokens
from attnflow.models.tokens import Tokenizer as Tokenizer
from attnflow.models.transformer import Transformer as Transformer
from attnflow.models.transformer import load as load


def __getattr__(name: str) -> object:
    from attnflow._check import no_attribute

    raise no_attribute(__name__, name, globals())
