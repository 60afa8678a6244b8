"""How fast attnflow is, next to its peers in the same run. Figures are ratios: machines differ, ratios less so."""
