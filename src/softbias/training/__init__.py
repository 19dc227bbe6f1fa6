"""Training: a recipe, one loop, checkpoints that survive anything, and honest scores."""
