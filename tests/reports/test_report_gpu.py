"""The page of ci/gpu: the newest run of each device, how each finding came out, and what to run without one."""

import json
import re
from html import unescape
from pathlib import Path

from reading import built
from sample_checks import FINDINGS, check, save_checks

from engine.result.schema.gpu_check import Finding, GpuCheck
from reports.read.load import load

HOSTILE = "<script>1</script><img src=x>"


def page(made: list[GpuCheck], folder: Path) -> str:
    return (built(folder, checks=made) / "gpu.html").read_text()


def rows(html: str) -> list[list[str]]:
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", html.split("<tbody>", 1)[1], re.DOTALL)
    ]


def test_each_finding_says_its_figure_what_was_wanted_and_how_it_came_out(tmp_path: Path) -> None:
    html = page([check()], tmp_path)
    assert rows(html) == [
        ["linear layer, fp32", "pass", "4.00e-07", FINDINGS[0].want, "", "6.000 s"],
        ["MFU, gpt-5b-l3", "fail", "41.3 %", "at least 55%", "", "61.00 s"],
        ["matrix products in bf16", "told", "788 Tflop/s", "not judged", "", "12.50 s"],
        ["tuner, llama", "not run", "none", "not judged", FINDINGS[3].sentence, "not run"],
    ]
    index = (tmp_path / "site" / "index.html").read_text()
    assert "1 device, 1 of" in index
    assert "1 check, 1 failed" in index


def test_of_each_device_the_newest_run_is_shown_and_a_rehearsal_is_called_one(tmp_path: Path) -> None:
    passed = check(findings=FINDINGS[:1], job=5)
    html = page([passed, check(job=2), check("AMD EPYC", cpu=True, job=9)], tmp_path)
    assert re.findall(r"<h2[^>]*>([^<]*)</h2>", html) == ["NVIDIA H200", "AMD EPYC, rehearsal"]
    assert len(rows(html.split("AMD EPYC, rehearsal</h2>")[0])) == 1
    assert "1 device, all that" in (tmp_path / "site" / "index.html").read_text()


def test_what_is_undecided_or_was_not_run_is_never_told_as_passed(tmp_path: Path) -> None:
    undecided = Finding(name="step by that of plain, gpt", status="undecided", figure=0.91, want="at most 0.91")
    for number, finding in enumerate((undecided, FINDINGS[3])):
        html = page([check(findings=[FINDINGS[0], finding])], tmp_path / str(number))
        assert rows(html)[1][1] == finding.status
        index = (tmp_path / str(number) / "site" / "index.html").read_text()
        assert "1 device, 1 of" in index
        assert "1 check, 1 failed" not in index


def test_without_a_run_the_page_says_what_to_run(tmp_path: Path) -> None:
    assert "ci/gpu" in page([], tmp_path)
    page([check(cpu=True)], tmp_path / "cpu")
    assert "without a GPU only" in (tmp_path / "cpu" / "site" / "index.html").read_text()


def test_what_a_device_calls_itself_is_text(tmp_path: Path) -> None:
    finding = Finding(name=HOSTILE, status="fail", figure=float("nan"), unit=HOSTILE, want=HOSTILE, sentence=HOSTILE)
    html = page([check(HOSTILE, findings=[finding])], tmp_path)
    assert "<img" not in html
    assert html.count("<script") == 1


def test_a_check_that_cannot_be_read_is_skipped_and_a_copy_counts_once(tmp_path: Path) -> None:
    save_checks([check(), check()], tmp_path)
    newer = json.loads((tmp_path / "gpu-0.json").read_text()) | {"version": 3}
    (tmp_path / "newer.json").write_text(json.dumps(newer))
    found = load([tmp_path])
    assert (len(found.checks), found.duplicates, found.statuses) == (1, 1, ["failed"])
    assert "update Par4D" in found.skipped[0].reason
