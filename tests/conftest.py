"""Shared by all tests: one thread a process, so that virtual ranks, real ones and two workers don't fight for cores."""

import os

import torch

os.environ["OMP_NUM_THREADS"] = "1"  # of what tests start
torch.set_num_threads(1)
