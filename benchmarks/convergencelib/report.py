"""The table (markdown, JSON) and the plots of what was run."""

import json
import statistics

from . import svg

GROUPS = {
    "codecs": "Codecs: BSP, 2 workers, momentum SGD",
    "staleness": "Staleness: 2 workers, FP16, momentum SGD",
    "variants": "Variants of the update: FP16, momentum SGD at the servers or in the local steps",
    "link": "A link-bound mlp of 2.2 M weights, 1 worker: steps a second",
}


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def repeatable(command):
    """A run's command without the places of the machine that it ran on."""
    words = ["scripts/fleet"]
    words += command[next(i for i, word in enumerate(command) if word == "run"):]
    places = {"--run-dir": "runs/x", "--build": "release"}
    return [places.get(before, word) for before, word in zip([None, *words], words)]


def row_of(case, results):
    """One case over its seeds."""
    losses = [r["validation_loss"] for r in results]
    rates = [r["steps_per_s"] for r in results if r["steps_per_s"]]
    return {"group": case.group, "model": case.model, "case": case.name, "seeds": len(results),
            "validation_loss": statistics.mean(losses), "spread": spread(losses),
            "clocks": results[0]["clocks"], "workers": case.workers,
            "bytes_pushed": statistics.mean(r["bytes_pushed"] for r in results),
            "bytes_pulled": statistics.mean(r["bytes_pulled"] for r in results),
            "seconds": statistics.median(r["seconds"] for r in results),
            "steps_per_s": statistics.median(rates) if rates else None,
            "staleness_max": max(r["staleness_max"] or 0 for r in results),
            "throttled_to_gbps": results[0]["throttled_to_gbps"],
            "command": repeatable(results[0]["command"])}


def size(count):
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def table_line(row, base):
    rate, base_rate = row["steps_per_s"], base["steps_per_s"]
    speed = f"{rate:.1f} | {rate / base_rate:.2f}" if rate and base_rate else "- | -"
    return (f"| {row['case']} | {row['validation_loss']:.3f} ± {row['spread']:.3f} "
            f"| {row['validation_loss'] / base['validation_loss']:.3f} | {row['seeds']} "
            f"| {row['clocks']} | {size(row['bytes_pushed'])} | {size(row['bytes_pulled'])} "
            f"| {row['seconds']:.1f} | {speed} |")


def markdown(rows, missing, machine):
    out = ["# Convergence: measured", "",
           "Written by `benchmarks/convergence`; the commands are in `convergence.json`. Losses are "
           "means over seeds, ± their standard deviation; bytes are payload of one worker. "
           f"Machine: {machine}. Where a link is named, every shard and worker was **throttled** to "
           "it in each direction; times then say what such a link would cost, not what this machine "
           "can do."]
    for group, title in GROUPS.items():
        for model in ("gpt", "mlp"):
            part = [row for row in rows if row["group"] == group and row["model"] == model]
            if not part:
                continue
            base = part[0]
            link = base["throttled_to_gbps"]
            out += ["", f"## {title} ({model})", "",
                    f"Throttled to {link:g} Gb/s. Ratios are to {base['case']}." if link else
                    f"Not throttled. Ratios are to {base['case']}.", ""]
            out += ["| | validation loss | to the first | seeds | clocks | pushed | pulled "
                    "| seconds | steps/s | to the first |",
                    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
            out += [table_line(row, base) for row in part]
    if missing:
        out += ["", "## Not run", "", *(f"- {key}: {why}" for key, why in missing)]
    return "\n".join(out) + "\n"


def mean_curve(results):
    """Point by point over seeds, as far as all go."""
    curves = [r["curve"] for r in results]
    return [[statistics.mean(values) for values in zip(*points)]
            for points in zip(*curves)]


def plots(groups):
    """{(model, group): [(case, results)]} as {file name: document}."""
    files = {}
    for (model, group), parts in groups.items():
        if group == "link":
            continue
        link = parts[0][1][0]["throttled_to_gbps"]
        wall = (f"seconds, throttled to {link:g} Gb/s each way" if link else "seconds")
        for axis, label, log_x in ((0, "clock", False),
                                   (2, "payload bytes of a worker, both ways", True),
                                   (3, wall, False)):
            series = [(case.name, [(point[axis], point[1]) for point in mean_curve(results)])
                      for case, results in parts]
            name = {0: "step", 2: "bytes", 3: "time"}[axis]
            document = svg.plot(f"{model}, {group}: training loss against {name}", label,
                                "training loss", series, log_x)
            if document:
                files[f"{model}-{group}-{name}.svg"] = document
    return files


def write(out, finished, missing, machine):
    """`finished`: [(case, results)], results not empty."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [row_of(case, results) for case, results in finished]
    (out / "convergence.json").write_text(
        json.dumps({"machine": machine, "rows": rows,
                    "not_run": [{"case": key, "why": why} for key, why in missing]}, indent=1) + "\n")
    (out / "convergence.md").write_text(markdown(rows, missing, machine))
    groups = {}
    for case, results in finished:
        groups.setdefault((case.model, case.group), []).append((case, results))
    for name, document in plots(groups).items():
        (out / name).write_text(document)
