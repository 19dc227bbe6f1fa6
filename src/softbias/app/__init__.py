"""A local page where you click a patch and see the attention of every head of every layer: `softbias app`."""
