"""A local page where you click a patch and see where every head of every layer looks: `softbias app`."""
