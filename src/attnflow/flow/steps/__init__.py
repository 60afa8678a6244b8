"""How a run is stepped in time, inside compiled segments."""
