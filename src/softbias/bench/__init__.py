"""Speed, measured: ours and its peers in one run, as ratios, because machines are noisy."""
