"""The engine's command line: train, check, data prepare, bench. torch is imported only by what computes."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NoReturn

from engine.batch import Batch
from engine.errors import EngineError, RunError, UsageError
from engine.grid import Grid
from engine.models.catalogue import published
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL, Overlap
from engine.peers.contest import CONTESTS, Case
from engine.planning.fit import parameters_per_rank, state_bytes
from engine.progress import log_to_stderr
from engine.training.config import OptimConfig, TrainConfig, checked, notices

log = logging.getLogger(__name__)

TRAIN_HELP = """\
Train a GPT with 4D parallelism for a fixed number of iterations and write one result.json.

Start one process a device with any launcher; the grid's four sizes multiply to the number of processes:

  python -m engine train --model gpt-local-1 --batch-size 8 --data synthetic --out result.json
  torchrun --standalone --nproc-per-node 2 -m engine train --model gpt-local-2 --grid 1x1x2x1 --batch-size 8 \\
       --data synthetic --out result.json
  srun -N 64 --ntasks-per-node 8 python -m engine train --model gpt-5b --grid 8x1x1x64 --batch-size 8192 \\
       --data synthetic --precision bf16 --checkpoint-activations --devices-per-node 8 --out result.json

Exit codes: 0 trained; 1 the run failed, and result.json says why; 2 it can't work as asked, and nothing was run.
"""

DEPTH_HELP = "weights gathered ahead of their use, for oag (default %(default)s)"
WINDOW_HELP = "reduce-scatters in flight at once, for ors (default %(default)s)"
BUCKET_HELP = "gradients of one all-reduce, for data (default %(default)g)"
PEERS_SHAPE = {"layers": 6, "hidden": 512, "heads": 8, "vocab": 8192, "seq": 128}


class _Parser(argparse.ArgumentParser):
    """Errors as one sentence and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[0].upper()}{message[1:]}: see {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        return arguments.command(arguments)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="python -m engine", description="The 4D-parallel training engine of Par4D.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    train = commands.add_parser("train", help="train a GPT and measure it", description=TRAIN_HELP, formatter_class=raw)
    _training_options(train)
    train.set_defaults(command=_train)

    check = commands.add_parser(
        "check",
        help="say whether a run would fit, and on which grid, without starting it",
        description="Takes the options of train, checks all that can be known beforehand, prints the plan as JSON.",
    )
    _training_options(check)
    check.add_argument("--ranks", type=int, required=True, metavar="N", help="processes that would be started")
    check.set_defaults(command=_check)

    data = commands.add_parser("data", help="prepare training data").add_subparsers(
        required=True, metavar="COMMAND", parser_class=_Parser
    )
    prepare = data.add_parser("prepare", help="turn a folder of text into token shards")
    prepare.add_argument("--source", type=Path, required=True, metavar="DIR", help="folder with text files, any depth")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the corpus goes")
    prepare.add_argument("--vocab-size", type=int, default=8192, metavar="N", help="default %(default)s")
    prepare.add_argument("--max-bytes", type=int, metavar="N", help="use only so much text (default: all)")
    prepare.set_defaults(command=_prepare)

    bench = commands.add_parser("bench", help="measure one device").add_subparsers(
        required=True, metavar="COMMAND", parser_class=_Parser
    )
    gemm = bench.add_parser("gemm", help="the empirical peak: square matrix multiplications")
    gemm.add_argument("--dtype", choices=("bf16", "fp32", "fp64"), default="bf16")
    gemm.add_argument("--sizes", default="1024..65536", help="LOW..HIGH doubles, or a comma list (default %(default)s)")
    gemm.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    gemm.add_argument("--time-budget", type=float, default=120.0, metavar="SECONDS", help="default %(default)s")
    _label_and_out(gemm)
    gemm.set_defaults(command=_gemm)

    startup = bench.add_parser("startup", help="what Grid and Comm cost one rank of a very large job")
    startup.add_argument("--grid", default="8x4x16x64", metavar="XxYxZxDATA", help="default %(default)s, 32,768 ranks")
    startup.set_defaults(command=_startup)

    peers = bench.add_parser(
        "peers",
        help="step times of the engine's grids against other people's parallelism, in turns in the same processes",
    )
    peers.add_argument("--peer", action="append", metavar="NAME", help=f"{', '.join(CONTESTS)} or all; repeatable")
    peers.add_argument(
        "--grid",
        action="append",
        type=Grid.parse,
        metavar="XxYxZxDATA",
        help="instead of the peer's usual one; repeatable. Under a launcher such as srun, its ranks take part",
    )
    peers.add_argument("--overlap", type=Overlap.parse, default=ALL, metavar="FLAGS", help="as in train")
    peers.add_argument("--checkpoint-activations", action="store_true", help="both sides")
    peers.add_argument("--model", metavar="NAME", help="a published size; else a shape")
    for key, default in PEERS_SHAPE.items():
        peers.add_argument(f"--{key}", type=int, metavar="N", help=f"without --model: {default} unless given")
    peers.add_argument("--batch-size", type=int, default=8, metavar="SEQS", help="default %(default)s")
    peers.add_argument("--jobs", type=int, default=3, metavar="N", help="fresh sets of processes; default %(default)s")
    peers.add_argument("--rounds", type=int, default=6, metavar="N", help="of each job; default %(default)s")
    peers.add_argument("--steps-per-round", type=int, default=2, metavar="N", help="of each side; default %(default)s")
    peers.add_argument("--threads", type=int, default=1, metavar="N", help="of each rank; default %(default)s")
    peers.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="for one job; %(default)s")
    peers.add_argument("--out", type=Path, default=Path("peers.json"), metavar="FILE", help="default %(default)s")
    peers.set_defaults(
        command=_peers, norm=None, no_bias=False, tied=False, dropout=None, architecture="gpt", kv_heads=None, ffn=None
    )
    return parser


def _training_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model: a published size, or a shape")
    model.add_argument("--model", metavar="NAME", help=f"one of {', '.join(published())}")
    model.add_argument("--architecture", metavar="NAME", help="of a shape: gpt (default) or llama")
    for option in ("--layers", "--hidden", "--heads", "--kv-heads", "--ffn"):
        model.add_argument(option, type=int, metavar="N")
    model.add_argument("--vocab", type=int, metavar="N", help="tokens known (default 51200)")
    model.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence (default 2048)")
    model.add_argument("--norm", choices=("layernorm", "rmsnorm"))
    model.add_argument("--no-bias", action="store_true", help="linear layers without biases")
    model.add_argument("--tied", action="store_true", help="one table for token embedding and head")
    model.add_argument("--dropout", type=float, metavar="P")

    run = parser.add_argument_group("run")
    run.add_argument("--grid", default="auto", metavar="XxYxZxDATA", help="e.g. 2x1x2x4; auto (default) chooses one")
    run.add_argument(
        "--batch-size",
        type=int,
        required=True,
        metavar="SEQS",
        help="sequences of a step, all ranks together",
    )
    run.add_argument("--micro-batch", type=int, metavar="N", help="sequences a rank takes at once (default: its share)")
    run.add_argument("--iterations", type=int, default=10, metavar="N", help="default %(default)s")
    run.add_argument(
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="first iterations not counted (default %(default)s)",
    )
    run.add_argument("--precision", choices=("fp32", "fp64", "bf16"), default="fp32", help="bf16 keeps fp32 masters")
    run.add_argument(
        "--reduce-dtype", choices=("fp32", "fp64", "bf16"), help="gradients while summed (default: precision)"
    )
    run.add_argument("--checkpoint-activations", action="store_true", help="recompute each block in the backward")
    run.add_argument("--data", required=True, metavar="PATH|synthetic", help="a corpus of `data prepare`, or synthetic")
    run.add_argument("--seed", type=int, default=0, metavar="N")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="for any collective (default %(default)s)",
    )
    run.add_argument("--devices-per-node", type=int, default=1, metavar="N", help="for --grid auto: x stays in a node")
    run.add_argument(
        "--device-memory", type=float, metavar="BYTES", help="for --grid auto: when the state must be split"
    )
    run.add_argument("--peak-flops", type=float, metavar="FLOPS", help="advertised peak of one device, for HFU and MFU")

    overlap = parser.add_argument_group("overlap: communication behind compute, with the same numbers")
    overlap.add_argument(
        "--overlap",
        default="all",
        metavar="FLAGS",
        help="none, all (default), or a comma list: oar (a layer's all-reduce behind its weight gradient), ors "
        "(reduce-scatters waited for late), oag (gathers ahead of their use), cache=N or cache=auto (gathers of N "
        "blocks kept for the recomputation of --checkpoint-activations), data (all-reduces over data during the last "
        "backward, and of each bucket the optimizer's step, unless --clip needs all gradients first)",
    )
    overlap.add_argument("--prefetch-depth", type=int, default=ALL.prefetch_depth, metavar="N", help=DEPTH_HELP)
    overlap.add_argument("--reduce-window", type=int, default=ALL.reduce_window, metavar="N", help=WINDOW_HELP)
    overlap.add_argument("--bucket-bytes", type=float, default=ALL.bucket_bytes, metavar="BYTES", help=BUCKET_HELP)
    overlap.add_argument(
        "--cache-bytes", type=float, metavar="BYTES", help="for cache=auto (default: half the free memory)"
    )
    overlap.add_argument("--timeline", type=Path, metavar="FILE", help="write the last iteration as a Chrome trace")

    optim = parser.add_argument_group("optimizer: AdamW")
    defaults = OptimConfig()
    optim.add_argument("--learning-rate", type=float, default=defaults.learning_rate, metavar="LR")
    optim.add_argument("--weight-decay", type=float, default=defaults.weight_decay, metavar="W")
    optim.add_argument(
        "--clip",
        type=float,
        default=defaults.clip,
        metavar="NORM",
        help="0 doesn't clip (default %(default)s)",
    )
    optim.add_argument("--lr-warmup-steps", type=int, default=defaults.warmup_steps, metavar="N")
    optim.add_argument(
        "--lr-decay-steps",
        type=int,
        default=defaults.decay_steps,
        metavar="N",
        help="cosine to a tenth there",
    )

    checkpoint = parser.add_argument_group("checkpoints")
    checkpoint.add_argument("--save", type=Path, metavar="DIR", help="write checkpoints below DIR")
    checkpoint.add_argument("--save-every", type=int, default=0, metavar="N", help="after every N-th step")
    checkpoint.add_argument("--resume", type=Path, metavar="DIR", help="go on from the latest checkpoint below DIR")
    _label_and_out(parser)


def _label_and_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--label", action="append", default=[], metavar="KEY=VALUE", help="kept in the result; repeatable"
    )
    parser.add_argument("--out", type=Path, default=Path("result.json"), metavar="FILE", help="default %(default)s")


def _labels(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [text.partition("=") for text in arguments.label]
    if bad := next((key + sign for key, sign, _ in pairs if not key or not sign), None):
        raise UsageError(f"A label is written KEY=VALUE, but {bad!r} was given.")
    return {key: value for key, _, value in pairs}


def _model(arguments: argparse.Namespace) -> ModelChoice:
    return ModelChoice(**{field.name: getattr(arguments, field.name) for field in fields(ModelChoice)})


def _overlap(arguments: argparse.Namespace) -> Overlap:
    return replace(
        Overlap.parse(arguments.overlap),
        prefetch_depth=arguments.prefetch_depth,
        reduce_window=arguments.reduce_window,
        bucket_bytes=arguments.bucket_bytes,
        cache_bytes=arguments.cache_bytes,
    )


def _config(arguments: argparse.Namespace) -> TrainConfig:
    return TrainConfig(
        model=_model(arguments),
        grid=None if arguments.grid == "auto" else Grid.parse(arguments.grid),
        batch=Batch(arguments.batch_size, arguments.micro_batch),
        data=arguments.data,
        out=arguments.out,
        iterations=arguments.iterations,
        warmup=arguments.warmup,
        precision=arguments.precision,
        reduce_dtype=arguments.reduce_dtype,
        checkpoint_activations=arguments.checkpoint_activations,
        overlap=_overlap(arguments),
        optim=OptimConfig(
            learning_rate=arguments.learning_rate,
            weight_decay=arguments.weight_decay,
            clip=arguments.clip,
            warmup_steps=arguments.lr_warmup_steps,
            decay_steps=arguments.lr_decay_steps,
        ),
        seed=arguments.seed,
        device=arguments.device,
        timeout_s=arguments.timeout,
        save=arguments.save,
        save_every=arguments.save_every,
        resume=arguments.resume,
        timeline=arguments.timeline,
        devices_per_node=arguments.devices_per_node,
        device_memory=arguments.device_memory,
        peak_flops=arguments.peak_flops,
        labels=tuple(_labels(arguments).items()),
    )


def _train(arguments: argparse.Namespace) -> int:
    from engine.comm.launch import from_environment

    launch = from_environment(os.environ)
    log_to_stderr(launch.rank)
    plan = checked(_config(arguments), launch.world_size)
    for notice in notices(plan):
        log.warning("%s", notice)
    from engine.training.run import train  # loads torch, which a command that can't work needn't wait for

    code = train(plan, launch)
    if code:
        # Leave at once: while a failed rank tidies up its groups, the others wait for it.
        logging.shutdown()
        os._exit(code)
    if launch.rank == 0:
        sys.stdout.write(f"{plan.config.out}\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    plan = checked(_config(arguments), arguments.ranks)
    for notice in notices(plan):
        sys.stderr.write(f"{notice}\n")
    told = {
        "grid": str(plan.grid),
        "ranks": plan.grid.size,
        "model": plan.model.name,
        "parameters": plan.model.parameters,
        "parameters_per_rank": parameters_per_rank(plan.model, plan.grid),
        "state_bytes_per_rank": state_bytes(plan.model, plan.grid),
        "sequences_per_rank": plan.config.batch.per_rank(plan.grid),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from engine.data.corpus import prepare

    log_to_stderr(0)
    header = prepare(arguments.source, arguments.out, arguments.vocab_size, max_bytes=arguments.max_bytes)
    sys.stdout.write(f"{arguments.out}: {header.tokens:,} tokens, vocabulary {header.vocabulary}\n")
    return 0


def _gemm(arguments: argparse.Namespace) -> int:
    from engine.bench.gemm import run_gemm

    log_to_stderr(0)
    result = run_gemm(
        dtype=arguments.dtype,
        sizes=arguments.sizes,
        device=arguments.device,
        time_budget_s=arguments.time_budget,
        labels=_labels(arguments),
        out=arguments.out,
    )
    if result.best_flops_per_s is None:
        raise RunError(f"No size could be measured: {result.gemm[0].skipped if result.gemm else 'none was given'}.")
    sys.stdout.write(f"{arguments.out}: best {result.best_flops_per_s / 1e12:.3f} Tflop/s\n")
    return 0


def _startup(arguments: argparse.Namespace) -> int:
    grid = Grid.parse(arguments.grid)
    from engine.bench.startup import measure

    sys.stdout.write(f"{grid.size} ranks, {measure(grid)}\n")
    return 0


def _peers(arguments: argparse.Namespace) -> int:
    if arguments.model is None:
        given = {key: value for key, value in vars(arguments).items() if value is not None}
        arguments = argparse.Namespace(**(vars(arguments) | PEERS_SHAPE | given))
    from engine.comm.launch import from_environment
    from engine.peers.compare import chosen, compare, table

    launch = from_environment(os.environ)
    log_to_stderr(launch.rank)
    case = Case(
        model=_model(arguments).resolve(),
        sequences=arguments.batch_size,
        jobs=arguments.jobs,
        rounds=arguments.rounds,
        steps=arguments.steps_per_round,
        threads=arguments.threads,
        timeout_s=arguments.timeout,
        checkpoint_activations=arguments.checkpoint_activations,
        overlap=arguments.overlap,
    )
    contests = chosen(arguments.peer or ["all"], arguments.grid or ())
    try:
        report = compare(contests, case, arguments.out, launch)
    except Exception as error:
        if launch.world_size == 1 or isinstance(error, UsageError):
            raise
        log.error("Rank %d failed.", launch.rank, exc_info=error)
        logging.shutdown()
        os._exit(1)  # at once, as a failed rank of train: its tidying up would wait for the others
    if report is not None:
        sys.stdout.write(table(report))
    return 0
