"""What a run leaves behind: a folder with data, figures, a movie, the claims and one page to read."""

from attnflow.report.carry_out import Outcome as Outcome
from attnflow.report.carry_out import carry_out as carry_out
from attnflow.report.carry_out import identity as identity
from attnflow.report.data import data_tree as data_tree
from attnflow.report.folder import Folder as Folder
