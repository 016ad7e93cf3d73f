"""What is trained: the cases of the comparison, the most telling ones first."""

from dataclasses import dataclass, field

# Small enough that a run takes seconds; every tensor but the smallest is compressed.
COMMON = ["--overlap=off", "--log_every=0", "--chunk_bytes=131072"]
CODED = ["--codec_min_elements=512"]
MODELS = {
    "gpt": {
        "data": "data/text",
        "steps": 400,
        "rate": 0.2,
        "flags": ["--model=gpt", "--layers=2", "--heads=4", "--width=48", "--context=32",
                  "--batch=8", "--evaluate_samples=1000"],
    },
    "mlp": {
        "data": "data/digits",
        "steps": 300,
        "rate": 0.05,
        "flags": ["--model=mlp", "--hidden=128,64", "--batch=16", "--evaluate_samples=0"],
    },
}
# So large for its arithmetic that the link decides: the rate of steps is measured, not the loss.
LINK_BOUND = ["--model=mlp", "--hidden=2048,1024", "--batch=2", "--evaluate_samples=64",
              "--overlap=on", "--log_every=0", "--optimizer=momentum", "--learning_rate=0.01",
              "--chunk_bytes=1048576", "--schedule=constant"]


@dataclass
class Case:
    group: str  # codecs, staleness, variants or link
    model: str
    name: str
    flags: list = field(default_factory=list)
    staleness: str = "0"
    steps: int = 0
    workers: int = 2
    rate: float = 0  # Of learning, if not the model's.
    full: bool = False  # Only with --full.
    link_gbps: float = 0  # If not the grid's.

    @property
    def key(self):
        return f"{self.model}/{self.group}/{self.name}"


def train_flags(case):
    if case.group == "link":
        return [*LINK_BOUND, f"--steps={case.steps}", "--data=data/digits", *case.flags]
    model = MODELS[case.model]
    return [*model["flags"], *COMMON, f"--data={model['data']}", "--optimizer=momentum",
            "--momentum=0.9", f"--learning_rate={case.rate or model['rate']:g}",
            "--schedule=cosine", "--warmup_steps=20", f"--steps={case.steps}", *case.flags]


def codec_cases(model, steps):
    """Both ways FP32 or 16 bits; the others for gradients, with FP16 weights."""
    def case(name, *flags, full=False):
        dense = flags[0].startswith("--codec=")
        return Case("codecs", model, name, [*flags, *([] if dense else CODED)], steps=steps,
                    full=full)

    topk = ["--push_codec=topk", "--pull_codec=fp16", "--topk_fraction=0.01"]
    return [
        case("fp32", "--codec=fp32"),
        case("fp16", "--codec=fp16"),
        case("onebit", "--push_codec=onebit", "--pull_codec=fp16"),
        case("onebit without error feedback", "--push_codec=onebit", "--pull_codec=fp16",
             "--error_feedback=off"),
        case("topk 1 %, momentum correction", *topk, "--optimizer=sgd",
             "--worker_momentum=0.9"),
        case("topk 1 %, correction, warm-up", *topk, "--optimizer=sgd", "--worker_momentum=0.9",
             f"--topk_warmup_steps={steps // 4}"),
        case("topk 1 %", *topk),
        case("int8", "--push_codec=int8", "--pull_codec=fp16"),
        case("int4", "--push_codec=int4", "--pull_codec=fp16"),
        case("onebit, weights int4", "--push_codec=onebit", "--pull_codec=int4"),
        case("bf16", "--codec=bf16"),
        case("int8 both ways", "--push_codec=int8", "--pull_codec=int8", full=True),
        case("fp8_e4m3", "--push_codec=fp8_e4m3", "--pull_codec=fp16"),
        case("fp8_e5m2", "--push_codec=fp8_e5m2", "--pull_codec=fp16", full=True),
        case("randk 5 %", "--push_codec=randk", "--pull_codec=fp16", "--topk_fraction=0.05"),
        case("powersgd rank 4", "--push_codec=powersgd", "--pull_codec=fp16"),
        case("sharedscale8", "--push_codec=sharedscale8", "--pull_codec=fp16"),
    ]


def staleness_cases(model, steps):
    return [Case("staleness", model, name, ["--codec=fp16"], staleness=value, steps=steps)
            for value, name in (("0", "0 (BSP)"), ("1", "1"), ("3", "3"), ("8", "8"),
                                ("async", "async"))]


def variant_cases(model, steps):
    rate = MODELS[model]["rate"]

    def case(name, *flags, **more):
        return Case("variants", model, name, ["--codec=fp16", *flags], steps=steps, **more)

    return [
        case("BSP"),
        Case("variants", model, "local steps, H = 10, averaged",
             ["--codec=fp16", "--local_steps=10", "--outer_learning_rate=1", "--outer_momentum=0"],
             steps=steps // 10),
        Case("variants", model, "local steps, H = 10, Nesterov 0.7 / 0.9",
             ["--codec=fp16", "--local_steps=10"], steps=steps // 10),
        case("async", staleness="async"),
        case("async, staleness-aware rate", "--staleness_rate", staleness="async"),
        case("async, delay compensation", "--delay_compensation=0.04", staleness="async"),
        Case("variants", model, "async local steps, delayed Nesterov 0.7 / 0.5",
             ["--codec=fp16", "--local_steps=10", "--outer_momentum=0.5"], staleness="async",
             steps=steps // 10),
        case("quorum 2 of 3", "--quorum=2", "--grace_ms=5", workers=3, rate=rate),
        case("BSP, 3 workers", workers=3, rate=rate, full=True),
    ]


def link_cases():
    """A gradient of 9 MB over 1 Gb/s: 73 ms each way in FP32."""
    def case(name, push, pull, *flags):
        return Case("link", "mlp", name, [f"--push_codec={push}", f"--pull_codec={pull}", *flags],
                    steps=40, workers=1, link_gbps=1)

    return [
        case("fp32 / fp32", "fp32", "fp32"),
        case("onebit / int4", "onebit", "int4"),
        case("topk 1 % / int4", "topk", "int4"),
        case("onebit / onebit", "onebit", "onebit"),
        case("fp16 / fp16", "fp16", "fp16"),
        case("int8 / int8", "int8", "int8"),
        case("int4 / int4", "int4", "int4"),
    ]


def cases():
    gpt, mlp = MODELS["gpt"]["steps"], MODELS["mlp"]["steps"]
    return [*link_cases(), *codec_cases("gpt", gpt)[:6], *variant_cases("gpt", gpt)[:3],
            *codec_cases("gpt", gpt)[6:], *staleness_cases("gpt", gpt),
            *variant_cases("gpt", gpt)[3:], *codec_cases("mlp", mlp), *staleness_cases("mlp", mlp),
            *variant_cases("mlp", mlp)]
