"""Results of `sample`, without a network: sheets of one colour."""

import base64
import io

from PIL import Image
from sample_results import provenance

from engine.models.catalogue import lookup
from engine.result import SamplerName
from engine.result.schema import Model, Result
from engine.result.schema.bench import ImageSheet


def images(
    trained_steps: int,
    *,
    sampler: SamplerName = "ddim",
    steps: int = 50,
    job: int = 0,
    name: str = "unet-test",
    resume: str = "runs/unet",
    system: str = "local",
    failure: str | None = None,
    colour: str = "teal",
) -> Result:
    """Sixteen images of a network after so many steps of its training."""
    config = lookup("unet-test")
    file = io.BytesIO()
    Image.new("RGB", (134, 134), colour).save(file, "PNG")
    model = Model(
        name=name,
        family="unet",
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        sequence=config.sequence,
        parameters=config.parameters,
        parameters_per_rank=config.parameters,
    )
    sheet = ImageSheet(
        trained_steps=trained_steps,
        sampler=sampler,
        steps=steps,
        images=16,
        side=32,
        time_s=21.5,
        png=base64.b64encode(file.getvalue()).decode(),
    )
    return Result(
        kind="sample",
        status="failed" if failure else "ok",
        reason=failure,
        labels={"system": system, "partition": "cpu"},
        config={"resume": f"{resume}/step-{trained_steps}"},
        ranks=1,
        grid="1x1x1x1",
        model=model,
        dtype="fp32",
        images=None if failure else sheet,
        provenance=provenance(job),
    )
