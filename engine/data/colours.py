"""Images have three channels: red, green and blue."""

CHANNELS = 3
