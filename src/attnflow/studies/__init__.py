"""One file a published figure or claim. A study has a `Spec`, and `run`, `figure` and `checks`."""

from attnflow.studies import demo as demo
from attnflow.studies.demo import Check as Check
