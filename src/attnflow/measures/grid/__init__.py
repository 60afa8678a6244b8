"""A density: the masses of the cells of a grid, and how mass passes between them."""
