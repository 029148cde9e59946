"""The data sets that shipped recipes read, as files on a hub: real records of ../shared/data under
the names that they have there, and, for sets that are not here, records of their kind in the
columns of their cards."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tests.end_to_end.tasks.records import SHARED, humaneval
from tests.end_to_end.tasks.records import rows as published

Row = dict[str, Any]


def write_hub(root: Path) -> dict[str, Path]:
    """Write all data sets below `root`; repository -> its directory."""
    found: dict[str, Path] = {}
    for path, rows in _tables():
        organisation, name, *rest = path.split("/")
        repository = root / organisation / name
        file = repository.joinpath(*rest)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            pa.parquet.write_table(pa.Table.from_pylist(rows), file)
        found[f"datasets/{organisation}/{name}"] = repository
    return found


def _tables() -> Iterator[tuple[str, list[Row]]]:
    one = "00000-of-00001.parquet"
    sums, programs = published("gsm8k/train_first1000.jsonl"), _programs()
    problems = [row for file in ("atkins", "thermo", "fund", "stat") for row in _problems(file)]
    yield f"openai/gsm8k/main/train-{one}", sums[:400]
    yield f"openai/gsm8k/main/test-{one}", published("gsm8k/test.jsonl")
    yield f"qiaojin/PubMedQA/pqa_labeled/train-{one}", [_article(row) for row in _articles()]
    yield f"walledai/XSTest/data/test-{one}", published("xstest/xstest_prompts.csv")
    gym, more = published("dipg_safety/test_gen_enhanced.jsonl"), list(haystacks(26))
    yield f"surfiniaburger/dipg-safety-instruction-1500/data/train-{one}", gym[:6] + more[:18]
    yield f"surfiniaburger/med-safety-gym-eval/data/test-{one}", gym[6:] + more[18:]
    yield f"openai/openai_humaneval/openai_humaneval/test-{one}", humaneval()
    yield f"xw27/scibench/data/train-{one}", list(textbooks())
    papers = published("scitldr/SciTLDR-A_test.jsonl")
    yield "allenai/scitldr/Abstract/train/0000.parquet", papers
    seeds = published("self_instruct/seed_tasks.jsonl")
    yield "HuggingFaceH4/self-instruct-seed/tasks.jsonl", seeds
    yield "HuggingFaceH4/mt_bench_prompts/raw/question.jsonl", list(_turns())
    # of their kind
    answers = [(row["question"], row["answer"].rpartition("#### ")[2]) for row in sums[400:600]]
    asked = [{"problem": problem, "expected_answer": answer} for problem, answer in answers]
    yield "nvidia/OpenMathInstruct-2/data/train_1M-00000-of-00003.parquet", asked
    half = len(problems) // 2
    yield f"allenai/qasc/data/train-{one}", problems[:half]
    yield f"allenai/ai2_arc/ARC-Challenge/train-{one}", problems[half:]
    yield f"allenai/ai2_arc/ARC-Easy/train-{one}", problems[half + half // 2 :]
    yield "TIGER-Lab/AceCode-87K/data/train-00000-of-00008.parquet", programs[80:]
    for split, rows in (("train", programs[:50]), ("test", programs[50:80])):
        yield f"google-research-datasets/mbpp/full/{split}-{one}", rows
    yield "databricks/databricks-dolly-15k/databricks-dolly-15k.jsonl", list(_instructions())
    yield f"SkunkworksAI/reasoning-0.01/data/train-{one}", list(_reasoned(sums[600:]))
    yield f"coastalcph/lex_glue/case_hold/train-{one}", list(_holdings(_articles()[:300]))
    asked = {f"{one['QUESTION']} Yes, no or maybe.": one["final_decision"] for one in _articles()}
    decisions = [{"input": text, "answer": said} for text, said in list(asked.items())[300:]]
    yield f"DatologyAI/legalbench_basic/hearsay/test-{one}", decisions


def _articles() -> list[Row]:
    return list(json.loads((SHARED / "pubmedqa/ori_pqal.json").read_text("utf-8")).values())


def _article(row: Row) -> Row:
    """PubMedQA's article in the hub's columns."""
    names = {"contexts": "CONTEXTS", "labels": "LABELS", "meshes": "MESHES"}
    return {
        "question": row["QUESTION"],
        "context": {name: row[column] for name, column in names.items()},
        "long_answer": row["LONG_ANSWER"],
        "final_decision": row["final_decision"],
    }


def textbooks() -> Iterator[Row]:
    """SciBench's problems, those with a worked solution among them, in the hub's columns."""
    for path in sorted((SHARED / "scibench").glob("*.json")):
        for row in published(f"scibench/{path.name}"):
            yield {"solution": "", **row}


def _turns() -> Iterator[Row]:
    """MT-bench's questions in the hub's columns."""
    for row in published("mtbench/question.jsonl"):
        about = {"prompt_id": row["question_id"], "category": row["category"]}
        yield {**about, "prompt": row["turns"], "reference": row.get("reference") or []}


def _problems(file: str) -> Iterator[Row]:
    """SciBench's problems as questions with four numbers to choose from."""
    for row in published(f"scibench/{file}.json"):
        number = row["answer_number"].strip()
        texts = [number, f"{number}1", f"2{number}", f"9{number}"]
        yield {
            "question": row["problem_text"].strip(),
            "choices": {"text": texts, "label": list("ABCD")},
            "answerKey": "A",
            "fact1": row["problem_text"].strip().partition(". ")[0],
            "fact2": f"The unit is {row['unit'].strip() or 'one'}",
            "combinedfact": f"The number is {number}",
        }


def _programs() -> list[Row]:
    """HumanEval's tasks, each with its assertions of one line, in the columns of both sets of
    programs; the shortest first, for mbpp's are short."""
    found = []
    for row in humaneval():
        lines = re.findall(r"^ *(assert candidate\(.*) *$", row["test"], re.MULTILINE)
        tests = [line.replace("candidate", row["entry_point"]) for line in lines]
        code = row["prompt"] + row["canonical_solution"]
        text = f"Complete this function:\n\n{row['prompt'].strip()}"
        both = {"question": text, "test_cases": tests, "text": text, "code": code}
        if tests and _compiles(tests):
            task = {"task_id": len(found), "test_list": tests, "test_setup_code": ""}
            found.append(both | task)
    return sorted(found, key=lambda row: len(row["code"]))


def _compiles(tests: Sequence[str]) -> bool:
    try:
        compile("\n".join(tests), "tests", "exec")
    except SyntaxError:
        return False
    return True


def _instructions() -> Iterator[Row]:
    tasks = published("self_instruct/seed_tasks.jsonl")
    tasks += published("self_instruct/user_oriented_instructions.jsonl")
    kinds = ("creative_writing", "brainstorming", "general_qa", "open_qa")
    for number, row in enumerate(tasks):
        given = row["instances"][0]
        kind = "closed_qa" if given["input"] else kinds[number % len(kinds)]
        yield _instruction(row["instruction"], given["input"], given["output"], kind)
    for row in published("scitldr/SciTLDR-A_test.jsonl"):
        text = " ".join(row["source"])
        asked = "Summarize this in one sentence."
        yield _instruction(asked, text, row["target"][0], "summarization")


def _instruction(instruction: str, context: str, response: str, category: str) -> Row:
    texts = {"instruction": instruction, "context": context, "response": response or "None."}
    return {**texts, "category": category}


def _reasoned(sums: Sequence[Row]) -> Iterator[Row]:
    for row in sums:
        reasoning, _, answer = row["answer"].partition("#### ")
        yield {"instruction": row["question"], "reasoning": reasoning, "output": answer}


def _holdings(articles: Sequence[Row]) -> Iterator[Row]:
    """Which of five conclusions is that of an abstract."""
    for number, row in enumerate(articles):
        endings = [articles[(number + other) % len(articles)]["LONG_ANSWER"] for other in range(5)]
        place = number % 5
        endings[0], endings[place] = endings[place], endings[0]
        text = " ".join(row["CONTEXTS"])[:600]
        yield {"context": f"{text} (<HOLDING>).", "endings": endings, "label": place}


def haystacks(count: int) -> Iterator[Row]:
    """Rows as the gym's author makes them (med-safety-gym, scripts/generate_med_data.py): one
    sentence that tells, among 25 to 30 of four templates."""
    draw = random.Random(0)
    for number in range(1, count + 1):
        straw: dict[str, None] = {}
        while len(straw) < 25 + number % 6:
            straw[_straw(draw)] = None
        months = f"{number + 4}.5 months"
        told = f"The trial NCT{number * 7919:08} reported a median survival of {months}."
        sentences = list(straw)
        sentences.insert(draw.randrange(len(sentences)), told)
        context, asked = "\n".join(sentences), f"What did NCT{number * 7919:08} report?"
        parts = {"think": "The context says so.", "proof": f'"{told}"', "answer": months}
        answer = "\n\n".join(f"<{tag}>\n{text}\n</{tag}>" for tag, text in parts.items())
        question = f"<context>\n{context}\n</context>\n\n<question>\n{asked}\n</question>"
        texts = {"user": question, "assistant": answer}
        yield {
            "messages": [{"role": role, "content": text} for role, text in texts.items()],
            "metadata": {
                "id": str(number),
                "type": "haystack",
                "source": "templates",
                "timestamp": "",
            },
        }


def _straw(draw: random.Random) -> str:
    tumor, marker, drug, way, outcome = map(draw.choice, _STRAW)
    why = f"is a novel therapeutic strategy being investigated for {tumor}."
    shown = f"has shown potential in preclinical models of {tumor} with {marker}."
    sentences = [
        f"In pediatric {tumor}, the presence of an {marker} is often associated with {outcome}.",
        f"The experimental drug {drug} {shown}",
        f"Utilizing {way} to deliver {drug} {why}",
        f"Despite initial responses, {outcome} is a common challenge with {drug} in {tumor}"
        " treatment.",
    ]
    return draw.choice(sentences)


_STRAW = (
    ["DIPG", "diffuse midline glioma", "H3 K27M-mutant glioma", "pontine glioma"],
    ["H3 K27M mutation", "ACVR1 mutation", "ATRX loss", "TP53 mutation", "EZH2 inhibition"],
    ["ONC201 (dordaviprone)", "panobinostat", "GSK-J4", "AZD0156", "GD2 CAR T-cell therapy"],
    ["convection-enhanced delivery (CED)", "re-irradiation", "proton beam therapy"],
    ["modest clinical benefit", "tumor regression", "acquired resistance", "significant toxicity"],
)
