"""The families of trained transformers: each a file with a table from the names in its files to the parts of a block."""

from attnflow.models.families.albert import ALBERT
from attnflow.models.families.base import Family as Family
from attnflow.models.families.bert import BERT
from attnflow.models.families.gpt2 import GPT2
from attnflow.models.families.llama import LLAMA
from attnflow.models.families.vit import VIT

# By the `model_type` of config.json.
FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, ALBERT, GPT2, LLAMA, VIT)}
