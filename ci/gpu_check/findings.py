"""Most findings have one of two forms: something passes or fails, or nothing is asked of it. No torch."""

from engine.result.schema.gpu_check import Finding


def passes_if(
    good: bool, name: str, want: str = "", sentence: str = "", *, figure: float | None = None, unit: str = ""
) -> Finding:
    """Return the finding that passes if all is good, and else fails."""
    found = Finding(name=name, status="pass", figure=figure, unit=unit, want=want, sentence=sentence)
    return found if good else found.model_copy(update={"status": "fail"})


def reported(name: str, sentence: str, figure: float | None = None, unit: str = "") -> Finding:
    """Return the finding of which nothing is asked."""
    return Finding(name=name, status="told", figure=figure, unit=unit, sentence=sentence)
