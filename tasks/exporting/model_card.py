"""The model card of an export: README.md in the Hugging Face hub's format, plots of the
evaluations, and the licence's notice.

Equal lineage and evaluations give equal text. Rates and intervals are those of the evaluations.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.visible import fence_of, visible
from schemas.evaluation import HELDOUT, EvalItem
from schemas.examples import Format, Trace
from tasks.contract.kinds import evaluation_of
from tasks.exporting.round_trip import NEW_TOKENS, Proof
from tasks.models.model_source import TINY, published_as

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at"
    " ai.google.dev/gemma/terms\n\nThe weights in this directory were modified: they were trained"
    " further from those that Google published.\n"
)
"""The notice that the Gemma Terms of Use (section 3.1) require with a model derived from Gemma."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: the model, the kind, and the metrics of its manifest."""

    model: str
    kind: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """A stage in the model's lineage: its inputs as `name: stage`, and its artifact."""

    stage: str
    kind: str
    version: int
    inputs: str
    key: str
    digest: str


@dataclass(frozen=True)
class Card:
    """The content of a model card.

    Attributes:
        title: the heading.
        base: the recipe's `model`, with which the training began.
        evaluations: in the order of training, also of models that the exported one began as.
        origins: the stages of its lineage, in the order of training.
        recipe: TOML that trains it again, or empty.
        versions: package -> version during training.
        beside: of adapters alone, the model that they belong to.
        channels: the format of its answers; None: not known.
        model: its own name among the evaluated models.
    """

    title: str
    base: str
    evaluations: Sequence[Evaluation] = ()
    origins: Sequence[Origin] = ()
    recipe: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    beside: str | None = None
    channels: Format | None = None
    model: str = "this model"

    @property
    def derived(self) -> bool:
        """Whether the weights began as Google's."""
        return self.base != TINY

    @property
    def by_kind(self) -> dict[str, list[Evaluation]]:
        """The evaluations of each kind, in order."""
        kinds = dict.fromkeys(one.kind for one in self.evaluations)
        return {kind: [one for one in self.evaluations if one.kind == kind] for kind in kinds}


def format_taught(items: Iterable[EvalItem]) -> Format | None:
    """The format that held-out rows have, and so the rows that the model learned from; None: an
    evaluation asked none."""
    return next((item.channels for item in items if item.suite == HELDOUT), None)


def write_card(directory: Path, card: Card, proof: Proof | None, family: str) -> None:
    """Write README.md, the plots it shows, and NOTICE for a model that began with Gemma's weights.
    Without a proof it says that there is none."""
    for kind, evaluations in card.by_kind.items():
        _plot(directory / f"{kind}.png", kind, evaluations)
    (directory / "README.md").write_text(visible(_text(card, proof, family)), encoding="utf-8")
    if card.derived:
        (directory / "NOTICE").write_text(NOTICE, encoding="utf-8")


def _text(card: Card, proof: Proof | None, family: str) -> str:
    use = USE if card.beside is None else ADAPTERS_USE.replace("BASE", card.beside)
    parts = [_front_matter(card, family), f"# {card.title}", _introduction(card), use]
    if card.evaluations:
        parts.append(
            "## Evaluation\n\nRates are percent with 95% intervals (Wilson); answers are greedy;"
            " prompts are held out."
        )
    for kind, evaluations in card.by_kind.items():
        title, last = evaluation_of(kind).title, evaluations[-1]
        models = [(one.model, one.metrics) for one in evaluations]
        parts.append(f"### {title}\n\n{_table(kind, 'model', models)}")
        parts += [
            f"By {part}, {one.model}:\n\n{_table(kind, part, list(of_part.items()))}"
            for one in evaluations
            for part in ("suite", "domain")
            if one.model == last.model and len(of_part := one.metrics.get(f"{part}s", {})) > 1
        ]
        parts.append(f"![{title}]({kind}.png)")
    if card.origins:
        header = ("stage", "kind", "version", "inputs", "key", "digest of the artifact")
        rows = [
            (one.stage, one.kind, str(one.version), one.inputs, f"`{one.key}`", f"`{one.digest}`")
            for one in card.origins
        ]
        parts.append(f"## Lineage\n\n{_markdown_table(header, rows)}")
    if card.recipe:
        fence = fence_of(card.recipe)
        parts.append(
            f"The recipe, as it was run (`lyceum run`):\n\n{fence}toml\n{card.recipe}{fence}"
        )
    if card.versions:
        with_what = (f"{name} {version}" for name, version in sorted(card.versions.items()))
        parts.append(f"Trained with {', '.join(with_what)}.")
    parts += [_verification(proof), _licence(card)]
    return "\n\n".join(parts) + "\n"


def _front_matter(card: Card, family: str) -> str:
    """The metadata for the hub; the model's own evaluations are a `model-index`."""
    from huggingface_hub import ModelCardData

    results = list(_results(one for one in card.evaluations if one.model == card.model))
    data = ModelCardData(
        library_name="transformers" if card.beside is None else "peft",
        pipeline_tag="text-generation",
        tags=["lyceum", family, "reasoning"],
        license="gemma" if card.derived else None,
        base_model=published_as(card.base),
        model_name=card.title if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _results(evaluations: Iterable[Evaluation]) -> "Iterator[EvalResult]":
    """The rates of each suite, in percent as in the tables, with their intervals in words: the
    hub's format has no field for them. Of a suite that two evaluations of a kind ask, the first
    counts. The hub keeps one name and one number of prompts for each dataset and its config."""
    from huggingface_hub import EvalResult

    asked: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in evaluations:
        for suite, metrics in one.metrics.get("suites", {}).items():
            asked.setdefault((one.kind, suite), metrics)
    for (kind, suite), metrics in asked.items():
        for name in evaluation_of(kind).card:
            if metrics.get(name) is not None:
                spread = _rate(metrics, name).partition(" ")[2]
                yield EvalResult(
                    task_type="text-generation",
                    task_name=evaluation_of(kind).title,
                    dataset_type=suite,
                    dataset_config=kind,
                    dataset_name=f"{suite}, {metrics['n']} prompts",
                    metric_type=name,
                    metric_name=f"{name.replace('_', ' ')}, %, 95% interval {spread}",
                    metric_value=round(100 * metrics[name], 1),
                )


def _introduction(card: Card) -> str:
    begun = f"`{card.base}`" if card.derived else "random weights"
    said = f"Post-trained by Lyceum from {begun}. It thinks before it speaks"
    if card.channels is None:
        return f"{said}."
    form = Trace(reasoning="...", proof="...", answer="...", channels=card.channels).render()
    return f"{said}: an answer has the form\n\n```\n{form}\n```"


USE = """\
## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".", attn_implementation="eager")
chat = [{"role": "user", "content": "What is 17 + 25?"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", \
return_dict=True)
answer = model.generate(**inputs, max_new_tokens=512)
print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
```

Decoding is greedy unless you ask for sampling, as in the evaluations. The model ends its turn \
with `<end_of_turn>`; the generation config
names it, and `<eos>`, as end tokens."""


ADAPTERS_USE = """\
## Use

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("BASE", attn_implementation="eager")
model = PeftModel.from_pretrained(base, ".")
```

These are the adapters alone (LoRA, in PEFT's format); they belong beside the model `BASE`."""


def _measured(kind: str, measured: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rates that a card shows of this kind, if some of the metrics have them."""
    found = list(measured)
    return [
        name
        for name in evaluation_of(kind).card
        if any(metrics.get(name) is not None for metrics in found)
    ]


def _table(kind: str, what: str, measured: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The rates of each model, suite or domain, by name."""
    rates = _measured(kind, (metrics for _, metrics in measured))
    header = (what, "prompts", *(rate.replace("_", " ") for rate in rates))
    rows = [
        (name, str(metrics["n"]), *(_rate(metrics, rate) for rate in rates))
        for name, metrics in measured
    ]
    return _markdown_table(header, rows)


def _rate(metrics: Mapping[str, Any], name: str) -> str:
    """62.3 [58.1, 66.4]; a dash for a rate over nothing."""
    if metrics.get(name) is None:
        return "–"
    return (
        f"{100 * metrics[name]:.1f} [{100 * metrics[f'{name}_low']:.1f},"
        f" {100 * metrics[f'{name}_high']:.1f}]"
    )


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _verification(proof: Proof | None) -> str:
    if proof is None:
        return "## Verification\n\nNone was made: this was not compared in `transformers`."
    ties = (
        f"; {proof.greedy_ties} of the answers part where two tokens are tied within the tolerance"
        if proof.greedy_ties
        else ""
    )
    return (
        f"## Verification\n\nBefore this directory was made, transformers {proof.transformers}"
        f" (torch {proof.torch}) read its files and was compared with the trained model in JAX,"
        f" both in {proof.dtype} on a CPU:\n\n- the chat template renders {proof.prompts} prompts"
        f" and their answers to the very tokens of training;\n- logits at {proof.positions}"
        f" positions differ by at most {proof.max_logit_difference:.1e} of the largest (tolerance"
        f" {proof.tolerance:g});\n- greedy answers of up to {NEW_TOKENS} tokens,"
        f" {proof.greedy_tokens} in all, are the same{ties};\n- `generate()` stops at"
        " `<end_of_turn>` and at `<eos>`.\n\nOne thing is read otherwise: of a prompt that spells"
        " a control token, such as `<end_of_turn>`, Lyceum makes plain text, and `transformers`"
        " the token (unless it is told `split_special_tokens=True`)."
    )


def _licence(card: Card) -> str:
    if not card.derived:
        return (
            "## Licence\n\nTrained from random weights: no weights of Gemma are in this directory."
        )
    return (
        "## Licence\n\nThis model is derived from Gemma. Gemma is provided under and subject to the"
        " [Gemma Terms of Use](https://ai.google.dev/gemma/terms); keep the file NOTICE with the"
        " weights, and pass on the use restrictions."
    )


def _plot(path: Path, kind: str, evaluations: Sequence[Evaluation]) -> None:
    """Draw the rates of one kind of evaluation with their intervals, model by model."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rates = _measured(kind, (one.metrics for one in evaluations))
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(rates))
    for number, name in enumerate(rates):
        shown = [
            (place, one.metrics)
            for place, one in enumerate(evaluations)
            if one.metrics.get(name) is not None
        ]
        centres = [place + (number - (len(rates) - 1) / 2) * width for place, _ in shown]
        values = [100 * metrics[name] for _, metrics in shown]
        spans = [
            [100 * abs(metrics[name] - metrics[f"{name}_{end}"]) for _, metrics in shown]
            for end in ("low", "high")
        ]
        axes.bar(centres, values, width=0.9 * width, label=name.replace("_", " "), alpha=0.85)
        axes.errorbar(
            centres, values, yerr=spans, fmt="none", ecolor="black", elinewidth=1, capsize=2
        )
    axes.set_xticks(range(len(evaluations)), [one.model for one in evaluations])
    axes.set(
        ylim=(0, 105),
        ylabel="% of held-out prompts",
        title=f"{evaluation_of(kind).title}, 95% intervals",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})
