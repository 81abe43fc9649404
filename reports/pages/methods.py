"""The page of methods: every derived figure by its formula, how spread is given, and what colours mean."""

from engine.footprint.memory import USABLE
from engine.result.gate import CONFIDENCE
from engine.result.metrics import DEFINITIONS
from reports import text
from reports.columns import INTERVALS
from reports.frames.contests import UNEQUAL
from reports.nights.page import METHODS as NIGHTS
from reports.page import Block, Definitions, Page, Paragraph, Section

NAME, TITLE = "methods", "Methods"
LEAD = (
    "What every figure of this report is, by its formula: what is counted, what is not, and how it is measured. The "
    "formulas are those that the program computes with, each in one place."
)
TIMES = (
    "Times are read on rank 0, from the start of a step to its end, where the host waits for an accelerator. Of a "
    "step, compute is what is left when all waits for collectives are taken off: everything that isn't such a wait is "
    "in it, also the time of the framework between kernels. Other ranks may wait longer or shorter than rank 0.",
    "Bytes of collectives are those of the input buffers on rank 0. Peak memory is that of every rank: what the "
    "process had resident where ranks compute on processors, what the framework's allocator held on accelerators.",
)
MANY = (
    f"No interval is corrected for how many contests there are: of N contests of sides that are equally fast about "
    f"N/{1 / (1 - CONFIDENCE):.0f} are called won or lost by chance."
)
UNLIKE = (
    f"Of older results on processors some had another network for each side ({UNEQUAL}): tables show these, and "
    "headlines leave them out."
)
ROOM = (
    "Before a contest starts, one model of memory tells what a rank of either side needs of a device: that of par4d "
    "plan for the engine, and the same parts, split as a peer splits them. A side that needs more than "
    f"{text.percent(USABLE)} of a device does not fit: the contest is a row that says so, and takes no job. Where each "
    "side fits, but not both, they are measured one after the other (the column Sides). Each then goes first in every "
    "other job; of a job whose ranks a launcher starts, half of the engine's rounds come before the peer's and half "
    "after them."
)
SPREAD = (
    "The job is what is repeated: each job gives one number, the mean over its iterations after the warm-up, and a "
    "point is the median of its jobs. Whiskers span the fastest and the slowest job; a point of one job has none, and "
    "says so. A job that failed gives no number: it is counted (2 of 3 jobs) and listed with its reason. Where several "
    "layouts ran on as many devices, lines are drawn through the fastest, which the page names.",
    "Overlaps of an ablation, and both sides of a contest, take turns in the same processes. Each job gives one paired "
    "ratio, the median over its rounds; what is given of several jobs is their geometric mean. Whiskers of bars span "
    "the rounds.",
    f"{INTERVALS} So it says what other such jobs would give, not what another day or another part of the machine "
    "would. Of two jobs it is wide, as Student's t is 12.7 there; three to six are wanted. In a simulation of 2 to 10 "
    "jobs of 3 to 6 rounds, where jobs differ by 0.3 to 5 % and rounds by 1 to 5 %, normally, with heavy tails, or "
    "with 5 % of the jobs off by 10 %, it held the true ratio in 94 to 98 % of the cases.",
    "A contest is won where the whole interval is below 1 and lost where all of it is above; a target is met where all "
    "of it is at or below the target and missed where all is above. Anything else is undecided, and so is whatever a "
    "single job measured. A gain is written in grey where its interval contains no difference, or isn't known. "
    f"{MANY} A peer with several layouts is shown on the one on which it stood best against the engine, chosen by the "
    "jobs that judge it too: chance favours the peer in that choice.",
    UNLIKE,
    ROOM,
    "Where each overlap ran in jobs of its own, as on the pages of weak and strong scaling, the time saved is that of "
    "the medians over jobs. Noise between jobs is in it and it has no interval.",
)
COLOURS = (
    "Bars of a step: blue is compute. Gold is blocking, waits for a result that the very next operation needs; red "
    "are the other waits. Both are exposed communication and count in full in the share hidden and in the time of the "
    "step: gold only says that this schedule had nothing else to do then. Where a result doesn't tell them apart, and "
    "on the pages of weak and strong scaling, red is both. The upright mark is the bound of the step.",
    "Pictures of one step: blue is compute and red where it stands still; in the lanes below, green is in flight "
    "behind compute, and red in flight while compute stands still.",
    "Dotted lines are ideals or peaks, dashed lines with open marks are published. Long dashes with diamonds are "
    "predicted; they never stand in one figure with measured points but where the two are held against each other.",
)
PEAKS = (
    "The advertised peak is the one that was given to the job, else that of the system's file, which is of dense "
    "products: a device's rate with sparsity is halved. The empirical peak is "
    "what the job's own ranks reached all at once before they trained, else the one given to the job, else that of the "
    "system's file, else that of a job that measured matrix products on as many ranks at once with as many threads "
    "each, or on one accelerator; of several such jobs the highest, which makes the share smaller. Each page says "
    "which it is. More than all of an empirical peak, which is marked 'above', says that the peak was measured too "
    "low, on another night or clock. More than all of an advertised peak can't be: such results are left out and named "
    "on the index page.",
)
PUBLISHED = (
    "Published figures are those that the papers print, each with its table or section; they are in engine/published. "
    "Times per batch that aren't printed follow from the printed flop/s or share of the peak and the formula of "
    "Narayanan et al. with a vocabulary of 51,200. Their efficiencies are computed here from the printed rates, "
    "which count recomputation. A published time is drawn beside ours only where the batch has as many tokens, and a "
    "published gain is of another machine, model and batch unless the page says otherwise.",
)
PREDICTED = (
    "Predicted times are of a trace of the engine's own step, its collectives and products as they are issued, played "
    "on a model of the machine: bandwidths and latencies that were measured there or published, and at most four "
    "numbers a machine that were fitted to few rows, which are marked and left out of every error. One rank stands for "
    "all, so nobody is late. The interval is that in which nine of ten times are expected. A plan without times ranks "
    "by the papers' equations alone: seconds of communication, none of them hidden.",
    "The order by Eq. 1 to 7 is that of the papers' equations with a bandwidth for each axis, by where its groups lie; "
    "without placement it is that of Eq. 1 to 6 with one bandwidth for all.",
)
ENERGY = (
    "Device: accelerators, the job's own by NVML or AMD SMI, or all of its nodes by Cray's pm_counters. A Grace "
    "Hopper module is one, and so are both chiplets of an MI250X, of which only the first tells anything. Processor "
    "and memory: all packages and memory of its nodes, by RAPL, whose packages leave memory out on servers, or by "
    "pm_counters. Node: everything in it, by pm_counters. Where pm_counters and others count the same, pm_counters "
    "are taken.",
    "Counters of joules are read before the first counted iteration and after the last, not during steps; those of "
    "RAPL, which begin anew after some minutes, also between steps. Power is sampled and summed only where a device "
    "has no such counter. What stood still, was measured for too short a time for how often its counter is renewed, "
    "or could not be read on every node is not measured: no part of a sum is given as the sum. Ablations and contests "
    "with peers count no energy.",
)
OLDER = (
    "Results of schema version 1 and 2 keep what they measured. They have no bound of a step, and no share hidden: "
    "what they called hidden summed collectives that were in flight together, so it could exceed the compute. Their "
    "peaks on processors were measured with all cores in one process, so they are not used as those of a job of "
    "several ranks. Overlaps that they measured in jobs of their own have no paired gains.",
)


def page() -> Page:
    sections = (
        Section("Figures", (Definitions(DEFINITIONS),)),
        *(
            Section(title, _paragraphs(words))
            for title, words in (
                ("How it is timed", TIMES),
                ("How spread is given", SPREAD),
                ("What colours and lines mean", COLOURS),
                ("Which peak", PEAKS),
                ("Energy", ENERGY),
                ("Published figures", PUBLISHED),
                ("Predictions", PREDICTED),
                ("Nights", NIGHTS),
                ("Older results", OLDER),
            )
        ),
    )
    return Page(TITLE, LEAD, sections, "")


def _paragraphs(words: tuple[str, ...]) -> tuple[Block, ...]:
    return tuple(Paragraph(one) for one in words)
