"""What a run leaves behind: a folder with data, figures, a movie, the claims and one page to read."""
