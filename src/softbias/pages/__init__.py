"""Pages: one theme, one template environment, one set of formatters and charts."""
