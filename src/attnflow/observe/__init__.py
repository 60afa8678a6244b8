"""What to look at along a path."""

from attnflow.observe.energy import energy as energy
