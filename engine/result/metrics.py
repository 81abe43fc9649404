"""Derived figures, each computed once. No torch."""


def utilisation(flops: float, time_s: float, devices: int, peak_flops_per_s: float) -> float:
    """The fraction of the devices' joint peak that these flops in this time are.

    HFU of hardware flops, MFU of model flops (axonn-sc24 VI-C; models/architecture.py says what each counts).
    """
    return flops / time_s / devices / peak_flops_per_s
