"""Augmentation on the device: settings, and the functions that apply them to a batch."""
