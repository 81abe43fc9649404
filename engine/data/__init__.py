"""Data: prepared folders and samples of a formula."""

CHANNELS = 3
"""Channels of images: red, green and blue."""
