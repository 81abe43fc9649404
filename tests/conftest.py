"""Shared by all tests: one thread a process, so that virtual ranks and real ones don't fight for two cores."""

import torch

torch.set_num_threads(1)
