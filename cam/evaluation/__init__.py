"""How good a map is: metrics, their conventions, and baselines."""
